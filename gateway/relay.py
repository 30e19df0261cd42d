"""What the client is sent: while it waits, while an answer streams, and when something breaks.

Rule 1: the first status line is sent as late as is honest: with the engine's first byte, or after
`hold_s` in the queue, when proxies and read timeouts would give up otherwise.
Rule 2: after the head, news can only be comments, and a failure only an error event.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson

from gateway import errors
from gateway.answer import Answer
from gateway.core import assemble, events
from gateway.core.fields import MESSAGES_SHAPE, Kind
from gateway.core.headers import Headers, first, from_engine
from gateway.core.types import Grant, Standing
from gateway.errors import ClientGone, EngineFailed, EngineRefused, GatewayError

if TYPE_CHECKING:
    from gateway.request import Request

PATIENCE_CHECK_S = 0.1  # a request still queued then is asked how long it would wait
_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_JSON = (b"content-type", b"application/json")


class Line:
    """The line to one client."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._client = request.client
        self._is_stream_head = False
        self._is_held_plain = False  # 200 went out before any engine answered
        self._patience_checked = False
        self._next_comment_s = request.client.arrived_s + request.services.config.hold_s

    # While it waits

    async def queue(self, granting: asyncio.Future[Grant]) -> None:
        """Wait until the ledger has spoken, the client has left or a limit was passed."""
        client, story = self._client, self._request.story
        check = client.loop.call_later(PATIENCE_CHECK_S, client.bell.ring)
        began_s = client.loop.time()
        try:
            while not granting.done() and not client.gone and story.expired is None:
                await client.bell.wait()
                if client.loop.time() - began_s >= PATIENCE_CHECK_S and not granting.done():
                    await self._check_patience()
                    await self._keep_alive()
        finally:
            check.cancel()

    async def _check_patience(self) -> None:
        """Refuse at once what the client would not wait for and could not be kept waiting."""
        order, services = self._request.order, self._request.services
        if self._patience_checked or order.patience_s is None:
            return
        self._patience_checked = True
        if order.is_kept_alive(services.config):
            return
        standing = await services.lookout.standing(self._client.request_id)
        if standing is None or standing.expected_wait_ms is None:
            return
        wait_s = standing.expected_wait_ms / 1000
        if wait_s > order.patience_s:
            self._request.story.expired = errors.Rejected(
                f"The expected wait is {wait_s:.0f} s and this client gives up after "
                f"{order.patience_s:.0f} s. Send it as a job to /v1/batches, or raise the timeout.",
                code="wait_exceeds_timeout",
                retry_after_s=wait_s,
            )

    async def _keep_alive(self) -> None:
        """After the hold: send headers, then a comment now and then."""
        request, client, config = self._request, self._client, self._request.services.config
        streams, now = request.order.asked.stream, client.loop.time()
        if client.gone or now < self._next_comment_s or not (streams or config.keepalive_plain):
            return
        self._next_comment_s = now + config.comment_every_s
        standing = None
        if request.is_queued:
            standing = await request.services.lookout.standing(client.request_id)
        if not client.started:
            request.story.status = 200
            if streams:
                await self._stream_head([_EVENT_STREAM, *_place(standing)])
            else:
                self._is_held_plain = True
                await client.head(200, [_JSON, *self._common(), *_place(standing)])
        await client.write(events.comment(_words(standing)) if streams else b"\n")

    async def _stream_head(self, headers: Headers) -> None:
        self._is_stream_head = True
        await self._client.head(200, [*headers, *_STREAM_HEADERS, *self._common()])

    def _common(self) -> Headers:
        order, grant = self._request.order, self._request.story.grant
        headers: Headers = self._request.quotas.headers()
        headers.append((b"x-fairway-class", order.caller.service_class.encode()))
        if grant is not None:
            headers.append((b"x-fairway-queue-wait-ms", str(grant.queue_wait_ms).encode()))
        if order.asked.dropped:
            dropped = ",".join(order.asked.dropped)
            headers.append((b"x-fairway-dropped-fields", _printable(dropped)[:500]))
        if order.reservation.is_bounded:
            headers.append((b"x-fairway-max-tokens", str(order.most_output).encode()))
        if order.client_request_id:
            headers.append((b"x-client-request-id", _printable(order.client_request_id)))
        return headers

    # While an answer comes

    async def forward(self, answer: Answer) -> bool:
        """Pass the answer on; False when it may be tried again on another replica."""
        request, client = self._request, self._client
        while not answer.ended and not client.gone and not _has_begun(answer):
            await client.bell.wait()
            await self._keep_alive()
        if client.gone:
            raise ClientGone
        if answer.ended and self._failed_early(answer):
            if request.may_try_again(answer):
                return False
            raise request.failure(answer)
        if answer.is_stream and not request.order.asked.stream:
            await self._assembled(answer)
        elif answer.is_stream:
            await self._stream(answer)
        else:
            await self._plain(answer)
        return True

    def _failed_early(self, answer: Answer) -> bool:
        """Did it end before anything of it could be passed on?"""
        if answer.error is not None:
            return answer.status != 200 or not answer.passed
        return answer.status != 200

    async def _stream(self, answer: Answer) -> None:
        client, request = self._client, self._request
        if not client.started:
            request.story.status = 200
            await self._stream_head(_typed(from_engine(answer.headers)))
        while not client.gone:
            if data := answer.take():
                await client.write(data)
            elif answer.ended:
                break
            else:
                await client.bell.wait()
        if client.gone:
            raise ClientGone
        usage = answer.usage
        if answer.error is not None or not (usage.whole or usage.error_code or usage.done):
            # What is cut is marked as cut; the empty line ends an event that may be half sent.
            error = request.story.expired or EngineFailed(
                "The engine ended the stream early.", code="engine_stream_broken"
            )
            await client.finish(b"\n\n" + self._error_event(error))
        else:
            await client.finish()

    async def _plain(self, answer: Answer) -> None:
        client, request = self._client, self._request
        if not self._is_held_plain:
            request.story.status = 200
            headers = [*from_engine(answer.headers), *self._common()]
            length = answer.length
            if length is not None:
                headers.append((b"content-length", str(length).encode()))
            await client.head(200, headers)
        while not client.gone:
            data = answer.take()
            if answer.ended and answer.error is None and not answer.holds:
                await client.finish(data)
                return
            if data:
                await client.write(data)
            elif answer.ended:
                client.cut()
                return
            else:
                await client.bell.wait()
        raise ClientGone

    async def _assembled(self, answer: Answer) -> None:
        """Wait for the end of a stream and answer with what a plain answer would have been."""
        client, request = self._client, self._request
        while not answer.ended and not client.gone:
            await client.bell.wait()
            await self._keep_alive()
        if client.gone:
            raise ClientGone
        usage = answer.usage
        if usage.error_code:
            raise EngineFailed(usage.error_message or "The engine failed.", code="engine_failed")
        if answer.error is not None or not usage.whole:
            raise request.story.expired or EngineFailed(
                "The engine ended the answer early.", code="engine_stream_broken"
            )
        body = orjson.dumps(_ASSEMBLERS[request.order.kind](answer.chunks))
        request.story.status = 200
        if self._is_held_plain:
            await client.finish(body)
        else:
            await client.answer(200, [_JSON, *self._common()], body)

    # When something breaks

    async def tell(self, error: GatewayError) -> None:
        """Send an error in whatever shape still fits."""
        client = self._client
        if client.gone or client.finished:
            return
        if not client.started:
            body = errors.body_of(error, messages_shape=self._in_messages_shape)
            headers = [*errors.headers_of(error), *self._common()]
            await client.answer(error.status, headers, body)
        elif self._is_stream_head:
            await client.finish(self._error_event(error))
        elif self._is_held_plain:
            await client.finish(errors.body_of(error, messages_shape=self._in_messages_shape))
        else:
            client.cut()

    @property
    def _in_messages_shape(self) -> bool:
        return self._request.order.kind in MESSAGES_SHAPE

    def _error_event(self, error: GatewayError) -> bytes:
        body = errors.body_of(error, messages_shape=self._in_messages_shape)
        named = self._request.order.kind in (Kind.MESSAGES, Kind.RESPONSES)
        return events.event(body, b"error" if named else b"")


_ASSEMBLERS = {
    Kind.CHAT: assemble.chat,
    Kind.COMPLETIONS: assemble.completions,
    Kind.RESPONSES: assemble.responses,
    Kind.MESSAGES: assemble.messages,
}


def _has_begun(answer: Answer) -> bool:
    """Is there something to pass on? Of an error the whole body is read first."""
    return answer.passed > 0 and answer.status == 200


def _typed(headers: Headers) -> Headers:
    return headers if first(headers, b"content-type") else [*headers, _EVENT_STREAM]


def _printable(text: str) -> bytes:
    return bytes(byte for byte in text.encode("ascii", "replace") if 32 <= byte < 127)


def _place(standing: Standing | None) -> Headers:
    """Return the headers that tell a waiting client where it stands."""
    if standing is None:
        return []
    headers: Headers = [(b"x-fairway-position", str(standing.position).encode())]
    if standing.expected_wait_ms is not None:
        wait = str(round(standing.expected_wait_ms / 1000)).encode()
        headers.append((b"x-fairway-expected-wait-s", wait))
    return headers


def _words(standing: Standing | None) -> str:
    if standing is None:
        return "working"
    text = f"queued, place {standing.position}"
    if standing.expected_wait_ms is not None:
        text += f", about {round(standing.expected_wait_ms / 1000)} s"
    return text


def engine_error(answer: Answer) -> GatewayError:
    """Put an engine's own error into our shape, its words kept."""
    message, kind, param = _read_error(answer.take())
    if answer.status == 404:
        return errors.NotFound(message, code="not_found_at_engine", param=param)
    if answer.status >= 500 and answer.status != 501:
        return EngineFailed(message, code="engine_failed")
    # llama.cpp says it in the type, vLLM only in words.
    is_too_long = "context" in kind or "maximum context length" in message
    code = "context_length_exceeded" if is_too_long else "engine_refused"
    return EngineRefused(answer.status, message, code=code, param=param)


def _read_error(body: bytes) -> tuple[str, str, str | None]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    error = found.get("error", found) if isinstance(found, dict) else None
    if not isinstance(error, dict):
        return "The engine refused the request.", "", None
    param = error.get("param")
    return (
        str(error.get("message") or "The engine refused the request.")[:2000],
        str(error.get("type") or ""),
        param if isinstance(param, str) else None,
    )
