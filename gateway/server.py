"""The process's own HTTP server: listening sockets, connections, signals, the drain.

SIGTERM, in this order: nothing new is accepted; for `GRACE_S` what was accepted is served as ever,
for a client may be sending at this very moment; then the queue is sent away with 503 and idle
connections are closed; what runs has `DRAIN_S` to end. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from gateway.app import Router
from gateway.config import Config
from gateway.door import Door
from gateway.inbound import Inbound
from gateway.services import Services

log = logging.getLogger("fairway.server")

GRACE_S = 0.25
FRESH_S = 1.0  # a connection that has never sent anything is given so long
BACKLOG = 2048

Open = Callable[[Config], AbstractAsyncContextManager[Services]]


class Server:
    """One gateway process from start to end."""

    def __init__(self, config: Config, open_services: Open) -> None:
        self._config = config
        self._open = open_services
        self._stop = asyncio.Event()
        self._now = asyncio.Event()  # asked twice

    async def serve(self) -> None:
        """Serve until told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        async with self._open(self._config) as services:
            door = Door(loop, Router(services).begin)
            listening = await self._listen(door)
            ticking = asyncio.create_task(door.tick(), name="door")
            try:
                await self._stop.wait()
                await self._drain(door, services, listening)
            finally:
                ticking.cancel()
                listening.close()
                for connection in tuple(door.connections):
                    connection.abort()
                await asyncio.sleep(0)  # so that each connection's owner hears of it

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            self._now.set()
        self._stop.set()

    async def _listen(self, door: Door) -> asyncio.Server:
        loop, config = asyncio.get_running_loop(), self._config

        def accept() -> Inbound:
            return Inbound(door)

        if config.fd is not None:
            return await loop.create_server(accept, sock=_inherited(config.fd), backlog=BACKLOG)
        return await loop.create_server(accept, config.host, config.port, backlog=BACKLOG)

    async def _drain(self, door: Door, services: Services, listening: asyncio.Server) -> None:
        loop = asyncio.get_running_loop()
        stopped_s = loop.time()
        for _ in range(2):  # whoever knocked before the signal is let in
            await asyncio.sleep(0)
        listening.close()
        door.is_closing = True
        await self._until(lambda: False, stopped_s + GRACE_S)
        services.drain()
        door.close_idle(fresh=False)
        await self._until(
            lambda: all(not one.is_fresh for one in door.connections), stopped_s + FRESH_S
        )
        door.close_idle(fresh=True)
        if not await self._until(
            lambda: not door.connections, stopped_s + max(self._config.drain_s, GRACE_S)
        ):
            services.cut()
            await self._until(lambda: not door.connections, loop.time() + GRACE_S)

    async def _until(self, is_so: Callable[[], bool], end_s: float) -> bool:
        """Wait for something; False when the time is up or nobody wants to wait any more."""
        loop = asyncio.get_running_loop()
        while not is_so():
            if self._now.is_set() or loop.time() >= end_s:
                return False
            await asyncio.sleep(0.02)
        return True


def _inherited(fd: int) -> socket.socket:
    """Return the supervisor's listening socket; its own copy stays open when ours is closed."""
    listening = socket.socket(fileno=fd)
    listening.setblocking(False)
    return listening
