"""What the client is sent: while it waits, while an answer comes, and when something breaks.

Rule 1: the first status line is sent as late as is honest: with the engine's first byte, or after
`hold_s` in the queue, when proxies and read timeouts would give up otherwise.
Rule 2: after the head, news can only be comments, and a failure only an error event.
Rule 3: nothing here waits. `pump` sends what can be sent now; it is called whenever that may have
changed, and what a slow client cannot take stays in the answer's bounded buffer.
"""

from __future__ import annotations

from enum import Enum, auto

import orjson

from gateway import errors
from gateway.answer import Answer
from gateway.client import Client
from gateway.config import Config
from gateway.core import assemble, events
from gateway.core.fields import MESSAGES_SHAPE, Kind
from gateway.core.headers import Headers, first, from_engine
from gateway.core.types import Standing
from gateway.errors import EngineFailed, GatewayError
from gateway.intake import Order
from gateway.quota import Standings
from gateway.record import Story

_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_JSON = (b"content-type", b"application/json")


class Mode(Enum):
    """How an answer is passed on."""

    WAITING = auto()  # nothing of it has come
    STREAM = auto()  # events, as they come
    PLAIN = auto()  # a document, as it comes
    WHOLE = auto()  # put together from events at its end


WAITING, STREAM, PLAIN, WHOLE = Mode  # members of an enum are slow to look up


class Line:
    """The line to one client."""

    __slots__ = (
        "_client", "_config", "_is_held_plain", "_is_stream_head", "_order", "_quotas", "_story",
        "mode", "next_comment_s",
    )  # fmt: skip

    # It knows the parts of a request and not the request: without rings of references a finished
    # request is freed at once, and its memory is used again while it is warm.
    def __init__(
        self, client: Client, order: Order, story: Story, quotas: Standings, config: Config
    ) -> None:
        self._client = client
        self._order = order
        self._story = story
        self._quotas = quotas
        self._config = config
        self._is_stream_head = False
        self._is_held_plain = False  # 200 went out before any engine answered
        self.mode = WAITING
        self.next_comment_s = client.arrived_s + config.hold_s

    # While it waits

    def is_comment_due(self, now: float) -> bool:
        """Is it time to send headers, or a comment?"""
        if now < self.next_comment_s or self.mode not in (WAITING, WHOLE):
            return False
        return self._order.asked.stream or self._config.keepalive_plain

    def keep_alive(self, now: float, standing: Standing | None) -> None:
        """Send headers after the hold, and a comment now and then."""
        client, streams = self._client, self._order.asked.stream
        self.next_comment_s = now + self._config.comment_every_s
        if not client.started:
            self._story.status = 200
            if streams:
                self._stream_head([_EVENT_STREAM, *_place(standing)])
            else:
                self._is_held_plain = True
                client.head(200, [_JSON, *self._common(), *_place(standing)])
        client.write(events.comment(_words(standing)) if streams else b"\n")

    def _stream_head(self, headers: Headers) -> None:
        self._is_stream_head = True
        self._client.head(200, [*headers, *_STREAM_HEADERS, *self._common()])

    def _common(self) -> Headers:
        order, grant = self._order, self._story.grant
        headers: Headers = self._quotas.headers()
        headers.append(order.caller.class_header)
        if grant is not None:
            headers.append((b"x-fairway-queue-wait-ms", b"%d" % grant.queue_wait_ms))
        if order.asked.dropped:
            dropped = ",".join(order.asked.dropped)
            headers.append((b"x-fairway-dropped-fields", _printable(dropped)[:500]))
        if order.reservation.is_bounded:
            headers.append((b"x-fairway-max-tokens", str(order.most_output).encode()))
        if order.client_request_id:
            headers.append((b"x-client-request-id", _printable(order.client_request_id)))
        return headers

    # While an answer comes

    def pump(self, answer: Answer) -> bool:
        """Send what can be sent now; False when nothing of the answer can be passed on."""
        if self.mode is STREAM:
            self._stream(answer)
        elif self.mode is PLAIN:
            self._plain(answer)
        elif self.mode is WHOLE:
            if answer.ended:
                self._assembled(answer)
        elif answer.ended and _failed_early(answer):
            return False
        elif answer.ended or (answer.passed and answer.status == 200):
            self._begin(answer)
            return self.pump(answer)
        return True

    def _begin(self, answer: Answer) -> None:
        if not answer.is_stream:
            self.mode = PLAIN
        elif self._order.asked.stream:
            self.mode = STREAM
            if not self._client.started:
                self._story.status = 200
                self._stream_head(_typed(from_engine(answer.headers)))
            answer.pass_to(self._client)
        else:
            self.mode = WHOLE

    def _stream(self, answer: Answer) -> None:
        client = self._client
        if client.is_slow:
            return
        client.write(answer.take())
        if not answer.ended:
            return
        usage = answer.usage
        if answer.error is not None or not (usage.whole or usage.error_code or usage.done):
            # What is cut is marked as cut; the empty line ends an event that may be half sent.
            error = self._story.expired or EngineFailed(
                "The engine ended the stream early.", code="engine_stream_broken"
            )
            client.finish(b"\n\n" + self._error_event(error))
        else:
            client.finish()

    def _plain(self, answer: Answer) -> None:
        client, story = self._client, self._story
        is_whole = answer.ended and answer.error is None
        if not client.started:
            headers = [*from_engine(answer.headers), *self._common()]
            if is_whole:
                story.status = 200
                client.answer(200, headers, answer.take())
                return
            if not (answer.held or answer.ended):
                return  # it is held until its end
            story.status = 200
            if answer.length is not None:
                headers.append((b"content-length", b"%d" % answer.length))
            client.head(200, headers)
        if client.is_slow:
            return
        client.write(answer.take())
        if is_whole:
            client.finish()
        elif answer.ended:
            client.cut()

    def _assembled(self, answer: Answer) -> None:
        """Answer with what a plain answer would have been, now that the stream has ended."""
        order, usage = self._order, answer.usage
        if usage.error_code:
            raise EngineFailed(usage.error_message or "The engine failed.", code="engine_failed")
        if answer.error is not None or not usage.whole:
            raise self._story.expired or EngineFailed(
                "The engine ended the answer early.", code="engine_stream_broken"
            )
        whole = _ASSEMBLERS[order.kind](answer.chunks)
        if order.names_tier and whole is not None:
            whole["service_tier"] = order.names_tier
        body = orjson.dumps(whole)
        self._story.status = 200
        if self._is_held_plain:
            self._client.finish(body)
        else:
            self._client.answer(200, [_JSON, *self._common()], body)

    # When something breaks

    def tell(self, error: GatewayError) -> None:
        """Send an error in whatever shape still fits."""
        client = self._client
        if client.gone or client.finished:
            return
        if not client.started:
            body = errors.body_of(error, messages_shape=self._in_messages_shape)
            headers = [*errors.headers_of(error), *self._common()]
            client.answer(error.status, headers, body)
        elif self._is_stream_head:
            client.finish(self._error_event(error))
        elif self._is_held_plain:
            client.finish(errors.body_of(error, messages_shape=self._in_messages_shape))
        else:
            client.cut()

    @property
    def _in_messages_shape(self) -> bool:
        return self._order.kind in MESSAGES_SHAPE

    def _error_event(self, error: GatewayError) -> bytes:
        body = errors.body_of(error, messages_shape=self._in_messages_shape)
        named = self._order.kind in (Kind.MESSAGES, Kind.RESPONSES)
        return events.event(body, b"error" if named else b"")


_ASSEMBLERS = {
    Kind.CHAT: assemble.chat,
    Kind.COMPLETIONS: assemble.completions,
    Kind.RESPONSES: assemble.responses,
    Kind.MESSAGES: assemble.messages,
}


def _failed_early(answer: Answer) -> bool:
    """Did it end before anything of it could be passed on? Of an error the whole body is read."""
    return answer.status != 200 or (answer.error is not None and not answer.passed)


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
