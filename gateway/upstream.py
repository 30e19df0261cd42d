"""A small HTTP/1.1 client for engines and for the portal: one exchange per connection at a time.

Callbacks instead of a coroutine per answer: what owns a slot must end exactly once whatever
happens to the task that serves the client, and a streamed event must cost one wake-up, not two.

Rule 1: after `send` the receiver hears exactly one ending: `end` or `lost`, and `turn` after it.
Rule 2: `Call.close` closes the engine's connection at once; engines notice that and stop.
Rule 3: a connection is used again only when the answer ended cleanly and the engine will not have
closed it by then (engines close idle ones after 5 s). If it had died all the same, before any byte
of the answer, the request is sent once more on a fresh one and counted.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.connection import (
    Broken,
    Caller,
    Closed,
    ConnectFailed,
    Connection,
    Receiver,
    UpstreamError,
)
from gateway.outgoing import Outgoing

__all__ = [
    "Broken",
    "Call",
    "Closed",
    "ConnectFailed",
    "Receiver",
    "Target",
    "Upstream",
    "UpstreamError",
    "target_at",
]

REUSE_S = 2.5  # half of the idle time after which engines close
CONNECT_S = 5.0


class Target:
    """Where to send: a host and port, or a unix socket. The same object means the same place."""

    __slots__ = ("authority", "host", "port", "prefix", "reuse", "socket_path", "tls")

    def __init__(
        self,
        host: str = "",
        port: int = 0,
        socket_path: str = "",
        tls: bool = False,
        prefix: str = "",  # path before /v1
        reuse: bool = True,
    ) -> None:
        self.host = host
        self.port = port
        self.socket_path = socket_path
        self.tls = tls
        self.prefix = prefix
        self.reuse = reuse
        #: The value of the Host header.
        self.authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(maxsize=1024)
def target_at(url: str, reuse: bool = True) -> Target:
    """Read an engine's base address."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    return Target(parts.hostname or "", port, "", tls, parts.path.rstrip("/"), reuse)


class Call(Caller):
    """One request on its way; what its owner holds."""

    __slots__ = (
        "_connecting", "_paused", "_reused", "connection", "over", "pool", "ready", "receiver",
        "request", "resent", "streamed", "target",
    )  # fmt: skip

    def __init__(
        self,
        receiver: Receiver,
        target: Target,
        request: bytes,  # head, and body unless that is streamed
        pool: Upstream,
        streamed: bool,  # the body follows by `write`: it cannot be sent twice
    ) -> None:
        self.receiver = receiver
        self.target = target
        self.request = request
        self.pool = pool
        self.streamed = streamed
        self.connection: Connection | None = None
        self.ready: asyncio.Event | None = None
        self.over = False
        self.resent = False  # a kept connection had died, and it was sent again
        self._reused = False
        self._connecting: asyncio.Task[None] | None = None
        self._paused = False

    def begin(self) -> None:
        """Take an idle connection or open one."""
        idle = None if self.streamed else self.pool.take(self.target)
        if idle is None:
            self._connecting = self.pool.loop.create_task(self._connect())
            return
        self._reused = True
        self.connection = idle
        idle.start(self, self.receiver, self.request)

    async def _connect(self) -> None:
        try:
            connection = await self.pool.open(self.target)
        except (OSError, TimeoutError) as error:
            self._over(ConnectFailed(str(error) or type(error).__name__))
            self.receiver.turn()
            return
        finally:
            self._connecting = None
        if self.over:
            connection.abort()
            return
        self.connection = connection
        connection.start(self, self.receiver, self.request)
        if self.ready is not None:
            self.ready.set()

    def finished(self, connection: Connection, *, reusable: bool) -> None:
        """The answer is whole."""
        self.connection = None
        if reusable and self.target.reuse and not self.streamed:
            if self._paused and connection.transport is not None:
                connection.transport.resume_reading()
            self.pool.give_back(self.target, connection)
        else:
            connection.abort()
        if not self.over:
            self.over = True
            self.receiver.end()

    def failed(self, connection: Connection, error: UpstreamError) -> None:
        """The connection broke."""
        self.connection = None
        if self._reused and not connection.bytes_seen and not self.over and not self.resent:
            self.resent = True
            self.pool.resent += 1
            self._connecting = self.pool.loop.create_task(self._connect())
            return
        self._over(error)

    def _over(self, error: UpstreamError) -> None:
        if self.ready is not None:
            self.ready.set()
        if not self.over:
            self.over = True
            self.receiver.lost(error)

    def close(self) -> None:
        """End the call now, whatever its state; the receiver hears `lost` unless it was over."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self.connection is not None:
            connection, self.connection = self.connection, None
            connection.let_go()
            connection.abort()
        self._over(Closed("closed by the gateway"))
        self.receiver.turn()

    def pause(self) -> None:
        """Read no more for now."""
        if not self._paused and self.connection is not None and self.connection.transport:
            self._paused = True
            self.connection.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            if self.connection is not None and self.connection.transport:
                self.connection.transport.resume_reading()

    async def write(self, data: bytes) -> bool:
        """Send a piece of a streamed body; False when nobody takes it any more."""
        if self.connection is None and not self.over:
            if self.ready is None:
                self.ready = asyncio.Event()
            await self.ready.wait()
        connection = self.connection
        if connection is None or connection.closed or connection.transport is None:
            return False
        connection.write(data)
        await connection.drained()
        return True


class Upstream:
    """Sends requests and keeps idle connections, a stack per target."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        reuse_s: float = REUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop = loop
        self.resent = 0  # requests sent again because a kept connection had died, not yet told
        self._outgoing = Outgoing(loop)
        self._idle: dict[Target, deque[Connection]] = {}
        self._tls: ssl.SSLContext | None = None  # made once: it reads all certificates there are
        self._reuse_s = reuse_s
        self._clock = clock

    def send(
        self, target: Target, request: bytes, receiver: Receiver, *, streamed: bool = False
    ) -> Call:
        """Start a request; everything else is heard by the receiver."""
        call = Call(receiver, target, request, self, streamed)
        call.begin()
        return call

    def take(self, target: Target) -> Connection | None:
        """Return an idle connection that is still good; the newest first."""
        stack = self._idle.get(target)
        good_since = self._clock() - self._reuse_s
        while stack:
            connection = stack.pop()
            if not connection.closed and connection.idle_since >= good_since:
                return connection
            connection.abort()
        return None

    def give_back(self, target: Target, connection: Connection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since = self._clock()
        self._idle.setdefault(target, deque()).append(connection)

    async def open(self, target: Target) -> Connection:
        """Connect."""

        def fresh() -> Connection:
            return Connection(self._outgoing)

        async with asyncio.timeout(CONNECT_S):
            if target.socket_path:
                _, made = await self.loop.create_unix_connection(fresh, target.socket_path)
                return made
            if target.tls and self._tls is None:
                self._tls = ssl.create_default_context()
            context = self._tls if target.tls else None
            _, made = await self.loop.create_connection(
                fresh, target.host, target.port, ssl=context
            )
            return made

    def take_resent(self) -> int:
        """Return how often a request was sent again since the last time this was asked."""
        count, self.resent = self.resent, 0
        return count

    def sweep(self) -> None:
        """Close idle connections that will not be used again; call it now and then."""
        good_since = self._clock() - self._reuse_s
        for target, stack in list(self._idle.items()):
            while stack and (stack[0].closed or stack[0].idle_since < good_since):
                stack.popleft().abort()
            if not stack:
                del self._idle[target]

    @property
    def idle(self) -> int:
        """How many connections lie in wait."""
        return sum(map(len, self._idle.values()))

    def close(self) -> None:
        """Close what is idle; running calls belong to their owners."""
        for stack in self._idle.values():
            for connection in stack:
                connection.abort()
        self._idle.clear()
