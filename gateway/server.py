"""The HTTP server: uvicorn's, with the few things a gateway must add.

* a request head that does not end, or is huge, is cut (uvicorn waits for ever);
* the answer to what is not HTTP is JSON, like every other error;
* an application that puts a callable under `fairway.left` hears at once that its client left;
* an application may cut a client's connection (`fairway.abort`), because a client that stopped
  reading can be got rid of in no other way, and a half answer must not look whole;
* SIGTERM: queued requests leave with 503, running ones have `drain_s` to finish.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.config import Config
from gateway.errors import BadRequest, body_of

HEAD_S = 15.0
HEAD_LIMIT = 64 * 1024
HEADER_COUNT = 128
KEEP_ALIVE_S = 75


class Protocol(HttpToolsProtocol):
    """One client's connection."""

    _head_size = 0
    _head_timer: asyncio.TimerHandle | None = None
    _extensions: Mapping[str, Callable[[], Any]] = MappingProxyType({})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        cycle: Any = self.cycle  # None before the first request
        is_early = cycle is not None and not cycle.response_complete
        super().connection_lost(exc)
        # Told directly: a task for each request that waits for this would cost as much as the
        # whole of uvicorn's part.
        left = self._extensions.get("fairway.left")
        if is_early and left is not None:
            left()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_size = 0
        self._extensions = {
            "fairway.abort": self.transport.abort,
            "fairway.is_closing": self.transport.is_closing,
        }
        cast(dict[str, Any], self.scope)["extensions"] = self._extensions
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is not None:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT and not self._has_head(data):
                self.send_400_response("")
                return
        super().data_received(data)

    @staticmethod
    def _has_head(data: bytes) -> bool:
        """Does a head end here? Then the rest is body, which has a limit of its own."""
        return b"\r\n\r\n" in data

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        if self._is_ambiguous():
            raise ValueError("ambiguous request")
        super().on_headers_complete()

    def _is_ambiguous(self) -> bool:
        """Is it a head that another party might read differently, or that is too long?"""
        hosts = lengths = size = 0
        coding = None
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                lengths += 1
            elif name == b"transfer-encoding":
                if coding is not None or value.lower() != b"chunked":
                    return True
                coding = value
        needs_host = self.parser.get_http_version() != "1.0"
        return (
            hosts > 1
            or (needs_host and hosts == 0)
            or lengths > 1
            or (coding is not None and lengths > 0)
            or not self.url.startswith(b"/")
            or size > HEAD_LIMIT
            or len(self.headers) > HEADER_COUNT
        )

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answer in shape and close: whatever follows on this connection is not read."""
        body = body_of(BadRequest("This is not a valid HTTP request.", code="invalid_http"))
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        )
        self.transport.write(head + body)
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which tells the application when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would raise the signal once more at the end; having ended well is exit code 0.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Not at the signal: until the public socket is closed newcomers still arrive here, and
        # those who have a slot elsewhere in a moment should not be sent away now.
        self._on_stop()
        await super().shutdown(sockets)


def make_server(app: Any, config: Config, on_stop: Callable[[], None]) -> Server:
    """Return the server for this process."""
    return Server(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            loop="uvloop",
            http=Protocol,
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=config.drain_s,
            backlog=2048,
        ),
        on_stop,
    )
