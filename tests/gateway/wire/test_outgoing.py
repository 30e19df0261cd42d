"""What a turn of the loop writes goes out together, in order, and none of it too late."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from gateway.outgoing import LARGE, MOST_HELD, Outgoing, Writer


class Ends:
    """Connections of this process with itself: a writer, and the socket at its other end."""

    def __init__(self) -> None:
        self.outgoing = Outgoing(asyncio.get_running_loop())
        self.sockets: list[socket.socket] = []

    async def open(self) -> tuple[Writer, socket.socket]:
        """Return a writer and where its bytes arrive."""
        mine, other = socket.socketpair()
        other.setblocking(False)
        self.sockets.append(other)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=mine)
        return Writer(self.outgoing, cast(asyncio.Transport, transport)), other

    def close(self) -> None:
        """Close the other ends."""
        for other in self.sockets:
            other.close()


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    made.close()
    await asyncio.sleep(0)


def arrived(other: socket.socket) -> bytes:
    """Return what has come so far."""
    try:
        return other.recv(1 << 20)
    except BlockingIOError:
        return b""


async def test_what_a_turn_writes_leaves_at_its_end_in_order(ends: Ends) -> None:
    """Nothing leaves while the turn lasts, everything once it is over, in the order written."""
    writer, other = await ends.open()

    for piece in (b"one ", b"two ", b"three"):
        writer.write(piece)
    assert arrived(other) == b""

    await asyncio.sleep(0)
    assert arrived(other) == b"one two three"


async def test_a_large_piece_leaves_at_once_behind_what_came_before_it(ends: Ends) -> None:
    """From the limit on waiting gains nothing; a byte less waits for the end of the turn."""
    writer, other = await ends.open()
    writer.write(b"first ")
    writer.write(b"x" * (LARGE - 1))
    assert arrived(other) == b""

    writer.write(b"y" * LARGE)

    taken = arrived(other)
    assert taken.startswith(b"first xxx")
    assert taken.rstrip(b"y") == b"first " + b"x" * (LARGE - 1)


async def test_one_connection_too_many_sends_them_all(ends: Ends) -> None:
    """With as many waiting as may be held nobody waits for the end of a long turn."""
    opened = [await ends.open() for _ in range(MOST_HELD)]
    for writer, _ in opened[:-1]:
        writer.write(b"held")
    assert {arrived(other) for _, other in opened} == {b""}

    opened[-1][0].write(b"held")

    assert {arrived(other) for _, other in opened} == {b"held"}


async def test_closing_sends_what_is_held_and_aborting_does_not(ends: Ends) -> None:
    """A proper end is complete; a cut connection says nothing more."""
    (closed, at_close), (cut, at_cut) = await ends.open(), await ends.open()
    closed.write(b"the end")
    cut.write(b"never sent")

    closed.close()
    cut.abort()
    await asyncio.sleep(0.01)

    assert (arrived(at_close), arrived(at_cut)) == (b"the end", b"")
