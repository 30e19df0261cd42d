"""A small HTTP/1.1 client for one server: connections that are kept, one request at a time each.

Written for the runner because a line's cost is mostly its request's: httptools parses, an asyncio
protocol carries, and nothing else is made for a request than one future. It knows no redirects,
cookies or proxies; the gateway has none of them for us.

Rule 1: a request that is cancelled closes its connection, so that the gateway hears of it.
Rule 2: an answer is read whole, but never more than `ANSWER_BYTES`.
Rule 3: a connection that rested longer than `REST_S` is not used again: the server ends idle ones,
and a request sent at that moment would seem broken.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

ANSWER_BYTES = 32 * 1024 * 1024
CONNECT_S = 5.0
REST_S = 4.0


class Unreachable(ConnectionError):
    """No connection was made, so nothing can have been started."""


class Broken(ConnectionError):
    """The connection ended before its answer did."""


@dataclass(slots=True)
class Reply:
    """One answer, whole."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)  # names in lower case
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str  # a path before every path

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a base address."""
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not an address of a server: {url!r}")
        port = parts.port or (443 if is_secure else 80)
        tls = ssl.create_default_context() if is_secure else None
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"))

    @property
    def name(self) -> str:
        """Return the Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Connection(asyncio.Protocol):
    """One connection; `ask` may be called again once its answer is there."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._reply = Reply()
        self._pieces: list[bytes] = []
        self._size = 0
        self._parser: httptools.HttpResponseParser | None = None
        self.is_open = False
        self.rests_since_s = 0.0

    def ask(self, request: bytes) -> asyncio.Future[Reply]:
        """Send a request; the future has its answer or `Broken`."""
        if self._transport is None:
            raise Broken("the connection was never made")
        self._reply, self._pieces, self._size = Reply(), [], 0
        self._parser = httptools.HttpResponseParser(self)
        self._waiting = self._loop.create_future()
        self._transport.write(request)
        return self._waiting

    def close(self) -> None:
        """End the connection at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # --- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()  # bytes nobody asked for
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer cannot be read: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiting is not None and self._reply.status and self._ends_with_connection():
            self.on_message_complete()
        else:
            self._fail("the connection broke")

    def _ends_with_connection(self) -> bool:
        names = self._reply.headers
        return b"content-length" not in names and b"transfer-encoding" not in names

    def _fail(self, why: str) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(Broken(why))
        self.close()

    # --- of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Keep the status; an answer before the answer (100, 103) is none."""
        if self._parser is not None:
            self._reply.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._size += len(data)
        if self._size > ANSWER_BYTES:
            raise Broken("the answer is too large")
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Hand the answer over."""
        if self._reply.status < 200:
            self._reply = Reply()
            return
        reply, waiting = self._reply, self._waiting
        reply.body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._waiting = None
        if self._parser is not None and not self._parser.should_keep_alive():
            self.close()
        self._parser = None
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)


class Pool:
    """The connections to one server; as many as there are requests at once."""

    def __init__(self, url: str) -> None:
        self.address = Address.of(url)
        self._loop = asyncio.get_running_loop()
        self._resting: deque[Connection] = deque()
        self._asked: dict[Connection, float] = {}  # when its request began

    def head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        """Return the unchanging part of a request, up to the length of its body."""
        lines = [f"{method} {self.address.prefix}{path} HTTP/1.1", f"Host: {self.address.name}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")

    async def ask(self, head: bytes, body: bytes = b"") -> Reply:
        """Send a request and wait for the whole answer, however long it takes."""
        connection = self._rested() or await self._connect()
        self._asked[connection] = time.monotonic()
        try:
            reply = await connection.ask(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        except BaseException:
            connection.close()
            raise
        finally:
            del self._asked[connection]
        if connection.is_open:
            connection.rests_since_s = time.monotonic()
            self._resting.append(connection)
        return reply

    def _rested(self) -> Connection | None:
        """Return the connection used last, and close those that rested too long."""
        oldest = time.monotonic() - REST_S
        while self._resting and self._resting[0].rests_since_s < oldest:
            self._resting.popleft().close()
        while self._resting:
            connection = self._resting.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> Connection:
        address = self.address
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._loop), address.host, address.port, ssl=address.tls
                )
        except (OSError, TimeoutError) as error:
            raise Unreachable(str(error) or "no connection in time") from error
        return connection

    def give_up(self, after_s: float) -> None:
        """Break off the requests that are older than this."""
        oldest = time.monotonic() - after_s
        for connection, began_s in list(self._asked.items()):
            if began_s < oldest:
                connection.close()

    def close(self) -> None:
        """End all connections; what was in flight is broken off."""
        for connection in (*self._resting, *self._asked):
            connection.close()
        self._resting.clear()
