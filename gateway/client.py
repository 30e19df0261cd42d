"""The client's side of one request: its body, its leaving, and what is written to it.

Everything here is done at once and waits for nobody; only what reads a body may wait. Who passes
much on looks at `is_slow` and goes on at `on_room`; who must stop when the client leaves sets
`on_left`.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from gateway.core.headers import Headers, first
from gateway.errors import ClientGone, TooLarge
from gateway.outgoing import Writer
from gateway.request_id import new_id

PIECES_LIMIT = 64 * 1024  # bytes of a body read ahead of whoever streams it on
_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_BODILESS: Final = frozenset((204, 304))
_LAST_CHUNK: Final = b"0\r\n\r\n"
_SHORT: Final = 1024  # of chunks as short as events are the size lines are kept
_SIZE_LINES: Final = [b"%x\r\n" % size for size in range(_SHORT)]


class Link(asyncio.Protocol):
    """The connection, as an exchange on it needs it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.peer = ""
        self.writer: Writer = None  # type: ignore[assignment]  # there before anything is read

    @property
    @abstractmethod
    def is_closing(self) -> bool:
        """Is this the last answer on this connection?"""

    @abstractmethod
    def date(self) -> bytes:
        """Return the Date header."""

    @abstractmethod
    def abort(self) -> None:
        """Close without a proper end."""

    @abstractmethod
    def wants_body(self) -> None:
        """Somebody reads the body now, so it has to come on."""

    @abstractmethod
    def answered(self) -> None:
        """The answer is complete."""


class Client:
    """One HTTP exchange as seen from the client; made for each request."""

    __slots__ = (
        "_chunked", "_left", "_limit", "_link", "_parts", "_reader", "_room", "_size", "_writer",
        "arrived_at", "arrived_s", "finished", "gone", "headers", "is_whole", "keeps_alive",
        "loop", "method", "minor", "on_left", "on_room", "path", "query", "raw_path",
        "request_id", "started",
    )  # fmt: skip

    def __init__(self, link: Link, method: str, target: bytes, headers: Headers) -> None:
        # First what each event looks at, so that it lies close together.
        self.gone = False
        self._chunked = False
        self._writer = link.writer
        self._left: int | None = None  # bytes of the stated length not written yet
        self._link = link
        self.loop = link.loop
        self.arrived_s = link.loop.time()
        self.arrived_at = time.time()
        self.request_id = new_id()
        self.method = method
        raw_path, _, self.query = target.partition(b"?")
        self.raw_path = raw_path
        path = raw_path.decode("latin-1")
        self.path = unquote(path) if "%" in path else path
        self.headers = headers  # names in lower case
        self.minor = 1  # of HTTP/1.x
        self.keeps_alive = True
        self.started = False
        self.finished = False
        self.is_whole = False  # the whole body has come
        self.on_left: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self._parts: list[bytes] = []
        self._size = 0  # of the parts
        self._limit: int | None = None  # of a body that is wanted whole
        self._reader: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    # The request

    @property
    def peer(self) -> str:
        """Return the address of the other end, "" of a unix socket."""
        return self._link.peer

    def header(self, name: bytes) -> str:
        """Return a header as text, "" when it is not there."""
        raw = first(self.headers, name)
        return "" if raw is None else raw.decode("latin-1")

    async def body(self, limit: int) -> bytes:
        """Read the whole body, but not more than `limit` bytes and not for ever."""
        declared = _declared_length(self.headers)
        if declared is not None and declared > limit:
            raise self._too_large(limit)
        if not self.is_whole and self._size <= limit:
            self._limit = limit
            self._link.wants_body()
            await self._more()
        return self.whole_body(limit)

    def whole_body(self, limit: int) -> bytes:
        """Return the body once it has come."""
        if self.gone:
            raise ClientGone
        if self._size > limit:
            raise self._too_large(limit)
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return data

    def unread(self, body: bytes) -> None:
        """Give back a body that is to be read again."""
        self._parts.append(body)

    async def piece(self) -> bytes:
        """Return the next piece of the body, b"" at its end; for who streams it on."""
        self._link.wants_body()
        while not self._parts and not self.is_whole and not self.gone:
            await self._more()
        if self.gone:
            raise ClientGone
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return data

    async def _more(self) -> None:
        self._reader = self.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _too_large(self, limit: int) -> TooLarge:
        self._limit = 0
        self.keeps_alive = False
        return TooLarge(f"The body must not exceed {limit} bytes.")

    # What the connection tells

    def take(self, data: bytes) -> bool:
        """A piece of the body came; False when enough was read for now."""
        if self.finished:
            return True  # nobody wants the rest; the connection bounds it
        self._parts.append(data)
        self._size += len(data)
        if self._limit is None:
            self._wake()
            return self._size < PIECES_LIMIT
        if self._size > self._limit:
            self._wake()
            return False
        return True

    def whole(self) -> None:
        """The body is complete."""
        self.is_whole = True
        self._wake()

    def left(self) -> None:
        """The client has gone; after a complete answer that means nothing."""
        if self.finished:
            return
        self.gone = True
        self._wake()
        self.room()
        if self.on_left is not None:
            self.on_left()

    def room(self) -> None:
        """The client takes more again."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self.on_room is not None and not self.gone:
            self.on_room()

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    # The answer

    @property
    def is_slow(self) -> bool:
        """Does the client take what it was sent too slowly for more to be written?"""
        return self._writer.full_since_s is not None

    @property
    def full_since_s(self) -> float | None:
        """Return since when nothing more could be written, None when it can."""
        return self._writer.full_since_s

    def head(self, status: int, headers: Headers) -> None:
        """Send status and headers; without a stated length the body goes in chunks."""
        if not self.gone:
            self._writer.write(self._head(status, headers))

    def _head(self, status: int, headers: Headers) -> bytes:
        self.started = True
        lines = [_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status, self._link.date()]
        length = None
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                length = int(value)
        lines += (b"x-request-id: ", self.request_id.encode(), b"\r\n")
        if self.method == "HEAD" or status in _BODILESS:
            length = 0
        elif length is None and self.minor:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        elif length is None:
            self.keeps_alive = False  # an old client learns the end from the connection's
        if not self.keeps_alive or self._link.is_closing:
            self.keeps_alive = False
            lines.append(b"connection: close\r\n")
        elif not self.minor:
            lines.append(b"connection: keep-alive\r\n")
        self._left = length
        lines.append(b"\r\n")
        return b"".join(lines)

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        if self.gone or not data:
            return
        if self._chunked:
            size = len(data)
            line = _SIZE_LINES[size] if size < _SHORT else b"%x\r\n" % size
            self._writer.write(b"%b%b\r\n" % (line, data))
            return
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        self._writer.write(data)

    def finish(self, data: bytes = b"") -> None:
        """Send the last piece."""
        if self.finished:
            return
        self.write(data)
        self.finished = True
        if self.gone:
            return
        if self._chunked:
            self._writer.write(_LAST_CHUNK)
        if self._left:
            self._link.abort()  # less than was promised: it must not look whole
        else:
            self._link.answered()

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer at once."""
        if self.gone:
            return
        head = self._head(status, [*headers, (b"content-length", b"%d" % len(body))])
        self._writer.write(head + body[: self._left])  # nothing of it to HEAD
        self._left = 0
        self.finish()

    def cut(self) -> None:
        """Close the client's connection without a proper end: the answer is not whole."""
        self.gone = True  # nothing may be written from now on; `left` follows
        self._link.abort()

    async def drained(self) -> None:
        """Wait while the client is slow; for who passes on in a coroutine."""
        while self.is_slow and not self.gone:
            self._room = self.loop.create_future()
            try:
                await self._room
            finally:
                self._room = None


def _declared_length(headers: Headers) -> int | None:
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None
