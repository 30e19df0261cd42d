"""A TCP relay that breaks the link between two parties on command.

It runs in a thread of the test's process, listens on a free port or on a Unix socket, and passes
bytes to its target until told otherwise. A changed fault counts for open connections too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

CHUNK = 65_536
PIECES = 64  # that may be on their way at once


@dataclass(frozen=True)
class Fault:
    """What happens to bytes on their way; the default is nothing."""

    delay_s: float = 0.0  # each piece arrives so much later
    stall: bool = False  # nothing gets through, connections stay open
    one_byte: bool = False  # each byte in a packet of its own
    reply_bytes: int = -1  # after so many bytes of reply the link ends; -1: never
    reset: bool = False  # ends as a reset instead of a plain end
    refuse: bool = False  # new connections are closed at once
    drop_replies: bool = False  # replies vanish, connections stay open


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset and not writer.transport.is_closing():
        link: socket.socket = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    with suppress(OSError):
        writer.close()


class Relay:
    """One listening relay; use as a context manager."""

    def __init__(self, target: tuple[str, int] | Path, listen: Path | None = None) -> None:
        self.fault = Fault()
        self.connections = 0
        self.port = 0
        self.path = listen
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._links: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Return the address for HTTP clients."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Relay:
        self._thread.start()
        assert self._ready.wait(10), "the relay does not listen"
        return self

    def __exit__(self, *exception: object) -> None:
        if self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        self._loop.close()

    def set(self, **changes: Any) -> None:
        """Break the link in this way from now on; without arguments heal it."""
        self.fault = replace(Fault(), **changes)

    def cut(self, *, reset: bool = False) -> None:
        """End all open connections now."""

        async def end_all() -> None:
            for writer in list(self._links):
                _close(writer, reset=reset)

        asyncio.run_coroutine_threadsafe(end_all(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        if self.path is None:
            server: asyncio.Server = await asyncio.start_server(self._link, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
        else:
            server = await asyncio.start_unix_server(self._link, self.path)
        self._ready.set()
        await self._end.wait()
        server.close()
        for writer in list(self._links):
            _close(writer, reset=False)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.fault.refuse:
            _close(writer, reset=self.fault.reset)
            return
        try:
            if isinstance(self._target, Path):
                there_in, there_out = await asyncio.open_unix_connection(self._target)
            else:
                there_in, there_out = await asyncio.open_connection(*self._target)
        except OSError:
            _close(writer, reset=True)
            return
        ends = {writer, there_out}
        self._links |= ends
        try:
            with suppress(asyncio.CancelledError):  # the test is over
                await asyncio.gather(
                    self._pass(reader, there_out, reply=False),
                    self._pass(there_in, writer, reply=True),
                )
        finally:
            self._links -= ends
            for end in ends:
                _close(end, reset=self.fault.reset)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reply: bool
    ) -> None:
        # What is late is late by itself: pieces on their way do not hold each other up.
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)
        taking = asyncio.create_task(self._take(reader, way))
        sending = asyncio.create_task(self._send(way, writer, reply=reply))
        try:
            await sending
        finally:
            taking.cancel()
            sending.cancel()

    async def _take(
        self, reader: asyncio.StreamReader, way: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await way.put((self._loop.time() + self.fault.delay_s, data))
        await way.put((0.0, b""))

    async def _send(
        self, way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, *, reply: bool
    ) -> None:
        passed = 0
        with suppress(ConnectionError):
            while (piece := await way.get())[1]:
                due_s, data = piece
                await asyncio.sleep(due_s - self._loop.time())
                while self.fault.stall:  # noqa: ASYNC110  (healed from another thread)
                    await asyncio.sleep(0.02)
                if reply and self.fault.drop_replies:
                    continue
                left = self.fault.reply_bytes - passed
                if reply and self.fault.reply_bytes >= 0 and left <= len(data):
                    await self._write(writer, data[: max(left, 0)])
                    _close(writer, reset=self.fault.reset)
                    return
                await self._write(writer, data)
                passed += len(data)
        with suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not self.fault.one_byte:
            writer.write(data)
            await writer.drain()
            return
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await writer.drain()
