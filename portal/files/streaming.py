"""Django's ASGI entry, except that an upload is read while it arrives.

Django spools a whole body to a temporary file before the view runs. For a batch input that would
mean: written twice, checked only at its end, and taken in full from somebody without a key. Here
the view reads `POST /v1/files` from the connection; every other request is left as Django has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any, cast

from django.core.handlers.asgi import ASGIHandler

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
STREAMED = ("POST", "/v1/files")


class LiveBody:
    """A body as a file: the view's thread reads, the event loop receives.

    It stands in for `receive` as well, so that Django's own watch for a client that leaves begins
    only after the body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._ended = False
        self._all_read = asyncio.Event()

    async def _next(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._end()
            raise OSError("the client left during its upload")
        self._rest = bytes(message.get("body", b""))
        if not message.get("more_body", False):
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._all_read.set()

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or nothing at the end; called in the view's thread."""
        while not self._rest and not self._ended:
            asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
        if size < 0:
            return self._rest_of_all()
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def readline(self, size: int = -1) -> bytes:
        """Return one line; Django reads to the end of a form this way."""
        line = b""
        while not line.endswith(b"\n") and (size < 0 or len(line) < size):
            if not self._rest and not (piece := self.read(1 << 16)):
                return line
            if not self._rest:
                self._rest = piece
            cut = self._rest.find(b"\n") + 1 or len(self._rest)
            if size >= 0:
                cut = min(cut, size - len(line))
            line, self._rest = line + self._rest[:cut], self._rest[cut:]
        return line

    def _rest_of_all(self) -> bytes:
        pieces = [self._rest]
        self._rest = b""
        while piece := self.read(1 << 20):
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Do nothing: the connection is the server's."""

    async def __call__(self) -> Message:
        """Wait for the client to leave, once the body is read."""
        await self._all_read.wait()
        return await self._receive()


class StreamingUploads(ASGIHandler):
    """The portal's ASGI application."""

    async def handle(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if (scope["method"], scope["path"]) == STREAMED:
            receive = LiveBody(receive)
        await super().handle(scope, receive, send)

    async def read_body(self, receive: Receive) -> IO[bytes]:
        """Return the body: a live one is read by the view, as far as it wants."""
        if isinstance(receive, LiveBody):
            return cast("IO[bytes]", receive)
        return await super().read_body(receive)
