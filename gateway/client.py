"""The client's side of one request: its body, its leaving, and what is written to it."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.bell import Bell
from gateway.core.headers import Headers, first
from gateway.errors import ClientGone, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_S = 60.0  # a body that has not come by then ends the connection
DRAIN_LIMIT = 1 << 20  # bytes of a refused body still read, so that the refusal is seen


class Client:
    """One HTTP exchange as seen from the client; made for each request.

    uvicorn's `send` neither raises nor returns early when the client has left. Our server tells
    (`fairway.left`); behind any other one, `watch` awaits `receive` beside everything else.
    """

    __slots__ = (
        "_receive", "_send", "_watcher", "arrived_at", "arrived_s", "bell", "finished", "gone",
        "loop", "request_id", "scope", "sending_since", "started",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.arrived_s = self.loop.time()
        self.arrived_at = dt.datetime.now(dt.UTC)
        self.bell = Bell(self.loop)
        self.scope = scope
        self.request_id = request_id
        self.gone = False
        self.started = False
        self.finished = False
        self.sending_since: float | None = None  # a write that the client does not take
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None

    @property
    def headers(self) -> Headers:
        """The request's headers, names in lower case."""
        headers: Headers = self.scope["headers"]
        return headers

    def header(self, name: bytes) -> str:
        """Return a header as text, "" when it is not there."""
        raw = first(self.headers, name)
        return "" if raw is None else raw.decode("latin-1")

    async def body(self, limit: int) -> bytes:
        """Read the whole body, but not more than `limit` bytes and not for ever."""
        declared = _declared_length(self.headers)
        if declared is not None and declared > limit:
            raise await self._too_large(limit)
        # One timer that cuts the connection; asyncio.timeout would cost more than the reading.
        late = self.loop.call_later(BODY_S, self.cut)
        try:
            message = await self._message()
            data: bytes = message.get("body", b"")
            if message.get("more_body"):
                data = await self._rest_of_body(data, limit)
        finally:
            late.cancel()
        if len(data) > limit:
            raise await self._too_large(limit)
        return data

    async def _rest_of_body(self, data: bytes, limit: int) -> bytes:
        parts, size, more = [data], len(data), True
        while more and size <= limit:
            message = await self._message()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _message(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientGone
        return message

    async def _too_large(self, limit: int) -> TooLarge:
        """Read a little more, since a reset would hide the answer from many clients."""
        drained = 0
        try:
            async with asyncio.timeout(1.0):
                while drained < DRAIN_LIMIT:
                    message = await self._receive()
                    drained += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        break
        except TimeoutError:
            pass
        return TooLarge(
            f"The body must not exceed {limit} bytes.", headers=((b"connection", b"close"),)
        )

    async def receive(self) -> Message:
        """Take the next message as it comes; for who streams the body on."""
        return await self._receive()

    def watch(self) -> None:
        """From now on ring the bell when the client leaves; the body must have been read."""
        extensions = self.scope.get("extensions", {})
        if "fairway.abort" in extensions:
            extensions["fairway.left"] = self._left
            if extensions["fairway.is_closing"]():
                self._left()
        elif self._watcher is None:  # a server other than ours
            self._watcher = self.loop.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
        self._left()

    def _left(self) -> None:
        # After a complete answer servers say the same; then it means nothing.
        if not self.finished:
            self.gone = True
            self.bell.ring()

    async def head(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, (b"x-request-id", self.request_id.encode())],
            }
        )

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client is slow."""
        self.sending_since = self.loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.sending_since = None

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece."""
        self.finished = True
        self.sending_since = self.loop.time()
        await self._send({"type": "http.response.body", "body": data})
        self.sending_since = None

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer at once."""
        length = (b"content-length", str(len(body)).encode())
        await self.head(status, [*headers, length])
        await self.finish(body if self.scope["method"] != "HEAD" else b"")

    def cut(self) -> None:
        """Close the client's connection without a proper end: the answer is not whole."""
        abort = self.scope.get("extensions", {}).get("fairway.abort")
        if abort is not None:
            abort()

    def close(self) -> None:
        """The request is over."""
        self.finished = True
        self.scope.get("extensions", {}).pop("fairway.left", None)
        if self._watcher is not None and not self._watcher.done() and not self.gone:
            self._watcher.cancel()


def _declared_length(headers: Headers) -> int | None:
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None
