"""Wakes one waiting coroutine, whoever rings, however often."""

from __future__ import annotations

import asyncio


class Bell:
    """A request waits at its bell for everything at once: grant, bytes, the client's leaving, time.

    One future at a time instead of `asyncio.wait` over several keeps a streamed event to one
    wake-up. A ring that nobody waits for is kept.
    """

    __slots__ = ("_loop", "_rung", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, *_: object) -> None:
        """Wake the waiting one; callable as any callback."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        else:
            self._rung = True

    async def wait(self) -> None:
        """Wait for the next ring."""
        if self._rung:
            self._rung = False
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
