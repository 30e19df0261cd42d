"""One client's connection: strict HTTP/1.1 in, bytes out, one request served at a time.

Rule 1: a head that another party might read differently, that does not end or is huge, is answered
400 in shape, and nothing after it is read.
Rule 2: requests sent ahead of their answers wait; while `MOST_AHEAD` wait, no more is read.
Rule 3: no timers of its own: `tick` comes round twice a second and closes what is due.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import cast

import httptools

from gateway.client import Client, Link
from gateway.core.headers import HEAD_LIMIT, Headers, is_ambiguous
from gateway.door import Door
from gateway.errors import BadRequest, body_of
from gateway.outgoing import Writer

HEAD_S = 15.0  # a head that has not come by then ends the connection
BODY_S = 60.0  # so does a body that does not come on
KEEP_ALIVE_S = 75.0
# The rest of a body is read after its refusal, or a reset would hide that; by `keeps_alive`.
LINGER_S = {False: 1.0, True: 10.0}
LINGER_LIMIT = {False: 1 << 20, True: 32 << 20}
# So many requests may come before the first is answered; then nothing more is read. Until then
# reading goes on, for a hang-up is heard by nobody who does not read.
MOST_AHEAD = 16


class Inbound(Link):
    """One connection of one client."""

    def __init__(self, door: Door) -> None:
        super().__init__(door.loop)
        self.is_fresh = True  # no request has come yet
        self._door = door
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # as the writer
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._due_s = self.loop.time() + HEAD_S
        self._head_size: int | None = 0  # of the head that is coming, None between heads
        self._target = b""
        self._headers: Headers = []
        self._reading: Client | None = None  # whose body is coming
        self._serving: Client | None = None
        self._ahead: list[Client] = []  # sent before the answer they come after
        self._lingered = 0
        self._is_paused = False
        self._ends = False  # close after the answer
        self._is_bad = False  # answer 400 after it, too

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.writer = Writer(self._door.outgoing, self._transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.connections.discard(self)
        self._parser = None  # it holds this connection as this connection holds it
        self._due_s = inf
        self._ahead.clear()
        reading, self._reading = self._reading, None
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.left()
        if reading is not None and reading is not serving:
            reading.left()

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._is_bad:
            return
        if self._head_size is not None:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT and b"\r\n\r\n" not in data:
                self._refuse()
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ends = True  # answered as the HTTP it is; what follows is not read
            self._is_bad = True
            self._pause()
        except httptools.HttpParserError:
            self._refuse()
        if self._ahead:
            if self._serving is None:
                self._begin()
            elif len(self._ahead) >= MOST_AHEAD:
                self._pause()

    def pause_writing(self) -> None:
        self.writer.full_since_s = self.loop.time()

    def resume_writing(self) -> None:
        self.writer.full_since_s = None
        if self._serving is not None:
            self._serving.room()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = []
        if self._head_size is None:
            self._head_size = 0
            if self._serving is None:
                self._due_s = self.loop.time() + HEAD_S

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None:
            return
        self._head_size = None
        version = parser.get_http_version()
        if is_ambiguous(self._target, self._headers, version):
            raise ValueError("ambiguous request")
        client = Client(self, parser.get_method().decode("latin-1"), self._target, self._headers)
        client.keeps_alive = parser.should_keep_alive()
        client.minor = 0 if version == "1.0" else 1
        self.is_fresh = False
        self._due_s = inf
        self._reading = client
        self._ahead.append(client)

    def on_body(self, body: bytes) -> None:
        client = self._reading
        if client is None:
            return
        if client.finished:
            self._lingered += len(body)
            if self._lingered > LINGER_LIMIT[client.keeps_alive]:
                self.writer.close()
        elif not client.take(body):
            self._pause()

    def on_message_complete(self) -> None:
        client, self._reading = self._reading, None
        if client is None:
            return
        client.whole()
        self._due_s = inf
        if client.finished:  # its refusal was out before its body was in
            self._next()

    # Requests

    def _begin(self) -> None:
        """Serve the next request that has come."""
        self._serving = client = self._ahead.pop(0)
        if len(self._ahead) >= MOST_AHEAD:
            self._pause()
        self._door.begin(client)

    def wants_body(self) -> None:
        """Somebody reads the body now, so it has to come on."""
        client = self._reading
        if client is None:
            return
        self._due_s = self.loop.time() + BODY_S
        self._resume()
        if not client.started and client.header(b"expect").lower() == "100-continue":
            client.headers = [h for h in client.headers if h[0] != b"expect"]
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def answered(self) -> None:
        """The answer is complete."""
        if self._reading is not None and self._reading is self._serving:
            # `_next` follows the end of the body.
            self._due_s = self.loop.time() + LINGER_S[self._serving.keeps_alive]
            self._lingered = 0
            self._resume()
        else:
            self._next()

    def _next(self) -> None:
        client, self._serving = self._serving, None
        if client is not None and not client.keeps_alive:
            self._ends = True
        if self._ends or self._door.is_closing:
            self.writer.close()
        elif self._ahead:
            self.loop.call_soon(self._begin_ahead)
        elif self._is_bad:
            self._write_bad()
        else:
            self._resume()
            if self._head_size is None:
                self._due_s = self.loop.time() + KEEP_ALIVE_S

    def _begin_ahead(self) -> None:
        if self._serving is None and self._ahead:
            self._begin()

    def _refuse(self) -> None:
        """Answer in shape and close: whatever follows on this connection is not read."""
        self._is_bad = True
        reading, self._reading = self._reading, None
        if reading is not None and reading is self._serving:  # its body is what cannot be read
            if not reading.started:
                self._write_bad()
            self._serving = None
            reading.left()
            self.abort()
            return
        if reading is not None:
            self._ahead.remove(reading)
        if self._serving is None and not self._ahead:
            self._write_bad()  # else the answers to what came before it are sent first

    def _write_bad(self) -> None:
        body = body_of(BadRequest("This is not a valid HTTP request.", code="invalid_http"))
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        )
        self.writer.write(head + body)
        self.writer.close()

    # Writing and closing

    @property
    def is_closing(self) -> bool:
        """Is this the last answer on this connection?"""
        return self._door.is_closing or self._ends

    def date(self) -> bytes:
        """Return the Date header."""
        return self._door.date

    def abort(self) -> None:
        """Close without a proper end."""
        self.writer.abort()

    def _pause(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        is_full = self._is_bad or len(self._ahead) >= MOST_AHEAD
        if self._is_paused and not is_full and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def tick(self, now_s: float) -> None:
        """Close the connection if it is due."""
        if now_s < self._due_s:
            return
        self._due_s = inf
        if self._reading is not None and not self._reading.finished:
            self.abort()  # a body that stopped coming
        elif self._transport.get_write_buffer_size():
            self.abort()  # not even the last answer was taken
        else:
            self.writer.close()

    @property
    def is_idle(self) -> bool:
        """Is nothing of any request here?"""
        return self._serving is None and self._reading is None and not self._ahead

    def close(self) -> None:
        """Close between requests."""
        self.writer.close()
