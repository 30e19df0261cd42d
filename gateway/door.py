"""What the connections of one process share: who is in, what time it is, whether it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import Protocol

from gateway.client import Client
from gateway.outgoing import Outgoing

TICK_S = 0.5


class Guest(Protocol):
    """A client's connection, as far as the door needs to know it."""

    is_fresh: bool  # no request has come yet

    @property
    def is_idle(self) -> bool: ...
    def tick(self, now_s: float) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Door:
    """What the connections of this process share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[Client], None]) -> None:
        self.loop = loop
        self.outgoing = Outgoing(loop)
        self.begin = begin
        self.connections: set[Guest] = set()
        self.is_closing = False
        self.date = b""
        self.look()

    def look(self) -> None:
        """Look at the clock and close what is due."""
        self.date = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        now_s = self.loop.time()
        for connection in tuple(self.connections):
            connection.tick(now_s)

    async def tick(self) -> None:
        """Look twice a second."""
        while True:
            await asyncio.sleep(TICK_S)
            self.look()

    def close_idle(self, *, fresh: bool) -> None:
        """Close connections between requests; those that never sent one only on demand."""
        for connection in tuple(self.connections):
            if connection.is_idle and (fresh or not connection.is_fresh):
                connection.close()
