"""An answer on its way: straight to a client that takes it, held in order for one that does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.answer import Answer, Buffers
from gateway.core.fields import Kind
from gateway.fleet.activity import Activity

STREAM = [(b"content-type", b"text/event-stream")]


class Taker:
    """Stands in for a request and its client."""

    def __init__(self) -> None:
        self.is_slow = False
        self.written: list[bytes] = []
        self.pumps = 0

    def write(self, data: bytes) -> None:
        """Take a piece."""
        self.written.append(data)

    def content_came(self) -> None:
        """Take note of nothing."""

    def answer_ended(self, answer: Answer) -> None:
        """Take note of nothing."""

    def pump(self) -> None:
        """Count how often there was something to do."""
        self.pumps += 1


@pytest.fixture
async def stream() -> tuple[Taker, Answer]:
    """Return a stream whose client takes it, and that client."""
    taker: Any = Taker()
    answer = Answer(
        Kind.CHAT, taker, Buffers(1000, 1000), asyncio.get_running_loop(), Activity(print),
        drop_usage=False, keep_chunks=False, streams=True, names_tier="",
    )  # fmt: skip
    answer.head(200, STREAM)
    answer.pass_to(taker)
    return taker, answer


def come(answer: Answer, *pieces: bytes) -> None:
    """Let pieces come in one turn."""
    for piece in pieces:
        answer.body(piece)
    answer.turn()


async def test_events_go_straight_to_a_client_that_takes_them(stream: tuple[Taker, Answer]) -> None:
    """Nothing is held, and nobody is woken for it, until the engine has ended."""
    taker, answer = stream

    come(answer, b"data: 1\n\n", b"data: 2\n\n")
    assert (taker.written, taker.pumps, answer.held) == ([b"data: 1\n\n", b"data: 2\n\n"], 0, False)

    answer.end()
    answer.turn()
    assert taker.pumps == 1


async def test_what_a_slow_client_is_held_goes_before_what_comes_later(
    stream: tuple[Taker, Answer],
) -> None:
    """While anything is held nothing passes it by, even when the client takes more again."""
    taker, answer = stream

    taker.is_slow = True
    come(answer, b"data: 1\n\n")
    taker.is_slow = False
    come(answer, b"data: 2\n\n")
    assert (taker.written, taker.pumps) == ([], 2)

    taker.write(answer.take())
    come(answer, b"data: 3\n\n")
    assert b"".join(taker.written) == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
