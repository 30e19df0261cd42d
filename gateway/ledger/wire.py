"""One raw connection to Redis or Valkey: bytes out, replies in the order of their commands.

The commands of a client library would cost the gateway more than the rest of a request together,
and its hidden retries would run a step twice. Here replies are handed out without a task, when the
turn of the loop in which they came has read all the rest: an event that is only passed on does not
wait for a request that begins.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

Answered = Callable[[Any], None]


class Connection(asyncio.Protocol):
    """A connection; each command names who takes its reply."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[], None]) -> None:
        self._loop = loop
        self._lost = lost
        self._is_due = False  # the loop will call `_hand_out`
        self._reader = hiredis.Reader()
        self._waiting: deque[Answered] = deque()
        self._transport: asyncio.Transport | None = None
        #: Takes what arrives unasked, the messages of a subscription.
        self.on_push: Answered | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's, so there is nothing to check here.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._is_due = False
        try:
            while (reply := self._reader.gets()) is not False:
                if self._waiting:
                    self._waiting.popleft()(reply)
                elif self.on_push is not None:
                    self.on_push(reply)
        except Exception:
            self.close()  # what follows cannot be told apart any more
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        self._hand_out()
        waiting, self._waiting = self._waiting, deque()
        for answered in waiting:
            answered(ConnectionError("the connection to the ledger's store was lost"))
        self._lost()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, answered: Answered, *arguments: str | bytes) -> None:
        """Write a command; `answered` gets its reply, or the error that came instead."""
        if self._transport is None or self._transport.is_closing():
            answered(ConnectionError("the connection to the ledger's store is closed"))
            return
        self._waiting.append(answered)
        self._transport.write(hiredis.pack_command(arguments))  # type: ignore[arg-type]

    async def ask(self, *arguments: str | bytes) -> Any:
        """Write a command and wait for its reply; an error reply is raised."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.send(answered, *arguments)
        return await future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect(url: str, lost: Callable[[], None]) -> Connection:
    """Open a connection to `redis://`, `rediss://` or `unix://` and sign in."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    loop = asyncio.get_running_loop()

    def factory() -> Connection:
        return Connection(loop, lost)

    if parts.scheme == "unix":
        _, connection = await loop.create_unix_connection(factory, unquote(parts.path))
    else:
        secure = ssl.create_default_context() if parts.scheme == "rediss" else None
        _, connection = await loop.create_connection(
            factory, parts.hostname or "127.0.0.1", parts.port or 6379, ssl=secure
        )
    try:
        await _sign_in(connection, parts.username, parts.password, _database(parts, options))
    except BaseException:
        connection.close()
        raise
    return connection


def _database(parts: Any, options: dict[str, str]) -> str:
    in_path = parts.path.lstrip("/") if parts.scheme != "unix" else ""
    return options.get("db") or in_path or "0"


async def _sign_in(
    connection: Connection, user: str | None, password: str | None, database: str
) -> None:
    if password:
        names = [unquote(user)] if user else []
        await connection.ask("AUTH", *names, unquote(password))
    if database != "0":
        await connection.ask("SELECT", database)
