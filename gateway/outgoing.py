"""What connections write in one turn of the loop, sent together at its end.

Sending wakes whoever reads, and waking costs the kernel more than copying the bytes. A peer that is
written to again and again between other work falls asleep in between and is woken each time; sent
one after the other, what many requests have to say wakes it once.
"""

from __future__ import annotations

import asyncio
from typing import Final

# Connections that wait before all are sent, so that none waits for a long turn.
MOST_HELD: Final = 16
LARGE: Final = 64 * 1024  # bytes that are sent at once: nothing is gained by waiting


class Outgoing:
    """The writers that have something to send."""

    __slots__ = ("_is_due", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Writer] = []
        self._is_due = False  # the loop will call `end_turn`

    def add(self, writer: Writer) -> None:
        """Send what this one holds before the turn is over."""
        self._waiting.append(writer)
        if len(self._waiting) >= MOST_HELD:
            self._send()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Send what is held."""
        self._is_due = False
        self._send()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for writer in waiting:
            writer.send()


class Writer:
    """One connection's way out; bytes go in the order in which they were written."""

    __slots__ = ("_held", "_more", "_outgoing", "_transport", "full_since_s")

    def __init__(self, outgoing: Outgoing, transport: asyncio.Transport) -> None:
        self._outgoing = outgoing
        self._transport = transport
        self._held = b""
        self._more: list[bytes] | None = None  # a turn seldom writes a second piece
        self.full_since_s: float | None = None  # since when the peer takes nothing more

    def write(self, data: bytes) -> None:
        """Send bytes at the end of this turn at the latest."""
        if not self._held:
            self._held = data
            if len(data) < LARGE:
                self._outgoing.add(self)
        elif self._more is None:
            self._more = [data]
        else:
            self._more.append(data)
        if len(data) >= LARGE:
            self.send()

    def send(self) -> None:
        """Send what is held now."""
        data, self._held = self._held, b""
        if self._more is not None:
            data = b"".join([data, *self._more])
            self._more = None
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what is held and close."""
        self.send()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what is held is lost."""
        self._held, self._more = b"", None
        if not self._transport.is_closing():
            self._transport.abort()
