"""Hands everything that is not the gateway's own to the portal, over its unix socket.

Rule 1: both directions stream with flat memory; the limit on the body is the portal's file limit.
Rule 2: whom the request came from is our word (X-Forwarded-*), not the client's, unless the peer
is a trusted proxy.
Rule 3: a request is never sent twice, and no connection is used again: the portal's requests may
change things, and one unix connect costs less than a doubt.
"""

from __future__ import annotations

import asyncio

from gateway.bell import Bell
from gateway.client import Client
from gateway.config import Config
from gateway.core.headers import Headers, end_to_end, first, to_portal
from gateway.errors import ClientGone, TooLarge, Unavailable, body_of, headers_of
from gateway.upstream import Call, Receiver, Target, Upstream, UpstreamError

RETRY_AFTER_S = 2
ANSWER_S = 120.0  # a portal that says nothing for so long counts as down
HIGH_WATER = 256 * 1024
_CHUNK_END = b"0\r\n\r\n"

_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="3"><title>Fairway: one moment</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem;
color-scheme:light dark}</style></head><body><h1>One moment</h1>
<p>The portal is starting or restarting. Requests to models go on meanwhile.
This page tries again by itself.</p></body></html>
"""


class _Reply(Receiver):
    """Takes the portal's answer."""

    def __init__(self, bell: Bell) -> None:
        self.call: Call | None = None
        self.status = 0
        self.headers: Headers = []
        self.ended = False
        self.error: UpstreamError | None = None
        self._bell = bell
        self._chunks: list[bytes] = []
        self._size = 0

    def head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and self.call is not None:
            self.call.pause()

    def end(self) -> None:
        self.ended = True

    def lost(self, error: UpstreamError) -> None:
        self.ended, self.error = True, error

    def turn(self) -> None:
        self._bell.ring()

    def take(self) -> bytes:
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self.call is not None:
            self.call.resume()
        return data


class Passthrough:
    """The way to the portal."""

    def __init__(self, config: Config, upstream: Upstream) -> None:
        self._config = config
        self._upstream = upstream
        self._target = Target(socket_path=config.portal_socket, reuse=False)

    async def serve(self, client: Client) -> None:
        """Pass one request on and its answer back."""
        bell = Bell(client.loop)
        client.on_left = bell.ring
        reply = _Reply(bell)
        chunked = first(client.headers, b"content-length") is None and (
            first(client.headers, b"transfer-encoding") is not None
        )
        try:
            self._check_length(client)
            call = self._upstream.send(
                self._target, self._head(client, chunked=chunked), reply, streamed=True
            )
        except TooLarge as error:
            client.answer(error.status, headers_of(error), body_of(error))
            return
        reply.call = call
        sending = asyncio.create_task(self._send_body(client, call, bell, chunked=chunked))
        try:
            await self._answer(client, reply, bell, sending)
        except TooLarge as error:
            client.answer(error.status, headers_of(error), body_of(error))
        except ClientGone:
            pass
        finally:
            call.close()
            sending.cancel()
            sending.add_done_callback(_ended)
            client.on_left = None

    def _check_length(self, client: Client) -> None:
        raw = first(client.headers, b"content-length")
        limit = self._config.portal_body_limit
        if raw is not None and raw.isdigit() and int(raw) > limit:
            raise self._too_large(client)

    def _too_large(self, client: Client) -> TooLarge:
        client.keeps_alive = False
        return TooLarge(f"The body must not exceed {self._config.portal_body_limit} bytes.")

    def _head(self, client: Client, *, chunked: bool) -> bytes:
        path = client.raw_path
        if client.query:
            path += b"?" + client.query
        headers = to_portal(
            client.headers,
            peer=client.peer,
            scheme="http",
            trusted=self._config.trusted_proxies,
        )
        lines = [client.method.encode() + b" " + path + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in headers if name != b"x-request-id"]
        lines.append(b"x-request-id: " + client.request_id.encode())
        lines.append(b"connection: close")
        if chunked:
            lines.append(b"transfer-encoding: chunked")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    async def _send_body(self, client: Client, call: Call, bell: Bell, *, chunked: bool) -> None:
        """Stream the client's body on."""
        size = 0
        while data := await client.piece():
            size += len(data)
            if size > self._config.portal_body_limit:
                bell.ring()
                raise self._too_large(client)
            if chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            await call.write(data)  # nobody may take it any more; it is read all the same
        if chunked:
            await call.write(_CHUNK_END)

    async def _answer(
        self, client: Client, reply: _Reply, bell: Bell, sending: asyncio.Task[None]
    ) -> None:
        await self._until_head(client, reply, bell, sending)
        if not reply.status:
            portal_is_down(client)
            return
        client.head(reply.status, _answer_headers(reply.headers))
        while not client.gone:
            if data := reply.take():
                client.write(data)
                await client.drained()
            elif reply.ended or client.method == "HEAD":
                break
            else:
                await bell.wait()
        if reply.error is not None and client.method != "HEAD":
            client.cut()
        elif not client.gone:
            client.finish()

    async def _until_head(
        self, client: Client, reply: _Reply, bell: Bell, sending: asyncio.Task[None]
    ) -> None:
        """Wait for the portal's status, its death, its silence, or the client's leaving."""
        deadline_s = client.loop.time() + ANSWER_S
        timer = client.loop.call_later(ANSWER_S, bell.ring)
        try:
            while not reply.status and not reply.ended:
                if client.gone:
                    raise ClientGone
                if sending.done() and (why := sending.exception()):
                    raise why
                if client.loop.time() >= deadline_s and sending.done():
                    return
                await bell.wait()
        finally:
            timer.cancel()


def _ended(sending: asyncio.Task[None]) -> None:
    """Look at how a body's sending ended: it was told to the client, or is nobody's any more."""
    if not sending.cancelled():
        sending.exception()


def _answer_headers(headers: Headers) -> Headers:
    return [
        (name, value)
        for name, value in end_to_end(headers)
        if name not in (b"x-request-id", b"date", b"server")
    ]


def portal_is_down(client: Client) -> None:
    """Say that the portal is away: JSON to programs, a small page to browsers."""
    accept = first(client.headers, b"accept") or b""
    error = Unavailable(
        "The portal is starting or restarting; try again.",
        code="portal_unavailable",
        retry_after_s=RETRY_AFTER_S,
    )
    headers = headers_of(error)
    body = body_of(error)
    if b"text/html" in accept and not client.path.startswith("/v1"):
        headers = [h for h in headers if h[0] != b"content-type"]
        headers.append((b"content-type", b"text/html; charset=utf-8"))
        headers.append(
            (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")
        )
        body = _PAGE
    client.answer(503, [*headers, (b"cache-control", b"no-store")], body)
