"""One HTTP/1.1 connection to an engine or to the portal: one exchange at a time.

Rule 1: a call hears one ending, `finished` or `failed`, unless it took itself off before.
Rule 2: whoever speaks without being asked, or does not speak HTTP, is cut.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import cast

import httptools

from gateway.outgoing import Outgoing, Writer

_ENDS = frozenset((b"content-length", b"transfer-encoding"))  # headers that tell where it ends


class UpstreamError(Exception):
    """The way to the engine, or the engine's end of it, broke."""


class ConnectFailed(UpstreamError):
    """No connection came about; the engine saw nothing of the request."""


class Broken(UpstreamError):
    """The connection ended before the answer did."""


class Closed(UpstreamError):
    """We closed it ourselves."""


# Base classes and not protocols: a call on a class that is known costs a tenth, compiled.
class Receiver(ABC):
    """Who takes an answer: notes what came, and acts on it at `turn`, when that was all for now."""

    __slots__ = ()

    @abstractmethod
    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and headers came."""

    @abstractmethod
    def body(self, data: bytes) -> None:
        """Bytes of the body came."""

    @abstractmethod
    def end(self) -> None:
        """The answer is complete as HTTP."""

    @abstractmethod
    def lost(self, error: UpstreamError) -> None:
        """The answer broke off, or never began."""

    @abstractmethod
    def turn(self) -> None:
        """That was all for now."""


class Caller(ABC):
    """The call that has the connection."""

    __slots__ = ()

    @abstractmethod
    def finished(self, connection: Connection, *, reusable: bool) -> None:
        """The answer is whole."""

    @abstractmethod
    def failed(self, connection: Connection, error: UpstreamError) -> None:
        """The connection broke."""


class Connection(asyncio.Protocol):
    """One connection; between calls it lies in the pool."""

    def __init__(self, outgoing: Outgoing) -> None:
        # First what each event looks at, so that it lies close together: among many streams none of
        # it is in the cache. For the same reason the call is not asked for its receiver.
        self._receiver: Receiver | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.bytes_seen = False
        self._call: Caller | None = None
        self._outgoing = outgoing
        self._writer: Writer | None = None
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.idle_since = 0.0
        self._writable: asyncio.Event | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._answered = False  # the final answer's head was seen
        self._until_close = False

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._writer = Writer(self._outgoing, self.transport)

    def data_received(self, data: bytes) -> None:
        self.bytes_seen = True
        receiver = self._receiver
        if receiver is None or self._parser is None:
            self.abort()  # an engine that speaks without being asked is not to be trusted
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Broken(f"not HTTP: {error}"))
            self.abort()
        receiver.turn()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._parser = None  # it holds this connection as this connection holds it
        if self._writable is not None:
            self._writable.set()
        receiver = self._receiver
        if receiver is None:
            return
        if self._answered and self._until_close and exc is None:
            self._finish(reusable=False)
        else:
            self._fail(Broken(str(exc) if exc else "connection closed early"))
        receiver.turn()

    def pause_writing(self) -> None:
        if self._writable is not None:
            self._writable.clear()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code() if self._parser is not None else 0
        if status < 200:
            return  # an interim answer; the real one follows
        self._answered = True
        self._until_close = True
        for name, _ in self._headers:
            if name in _ENDS:
                self._until_close = False
        if self._receiver is not None:
            self._receiver.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._receiver is not None:
            self._receiver.body(body)

    def on_message_complete(self) -> None:
        if self._answered and self._parser is not None:
            self._finish(reusable=self._parser.should_keep_alive())

    # Ends

    def _finish(self, *, reusable: bool) -> None:
        call = self.let_go()
        if call is not None:
            call.finished(self, reusable=reusable and not self.closed)

    def _fail(self, error: UpstreamError) -> None:
        call = self.let_go()
        if call is not None:
            call.failed(self, error)

    def let_go(self) -> Caller | None:
        """Take the call off, which hears nothing from now on."""
        call = self._call
        self._call = self._receiver = None
        return call

    def start(self, call: Caller, receiver: Receiver, head: bytes) -> None:
        """Send a request."""
        self._call, self._receiver = call, receiver
        self.bytes_seen = self._answered = self._until_close = False
        self.write(head)

    def write(self, data: bytes) -> None:
        """Send a piece of a request."""
        if self._writer is not None:
            self._writer.write(data)

    async def drained(self) -> None:
        """Wait until more of a request body may be written."""
        if self._writable is None:
            self._writable = asyncio.Event()
            self._writable.set()
        if self._writer is not None:
            self._writer.send()  # or its size would not be known
        if self.transport is not None and self.transport.get_write_buffer_size() > 65536:
            await self._writable.wait()

    def abort(self) -> None:
        """Close without waiting for anything."""
        self.closed = True
        if self._writer is not None:
            self._writer.abort()
