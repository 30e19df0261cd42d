"""One engine's answer on its way to the client: reads it on the side, holds what is not sent yet.

Engines generate however fast the client reads, so the answer is taken at full speed into a bounded
buffer and its slot is given back when the engine ends, not when the client has read everything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import orjson

from gateway import coding, errors
from gateway.client import Client
from gateway.core.fields import Kind
from gateway.core.headers import Headers, first
from gateway.core.usage import Usage
from gateway.core.usage_reader import PlainReader, StreamReader
from gateway.errors import EngineFailed, EngineRefused, GatewayError
from gateway.fleet.activity import Activity
from gateway.upstream import Call, Receiver, UpstreamError

ERROR_LIMIT = 64 * 1024  # of an engine's error body


@dataclass(slots=True)
class Buffers:
    """Bytes held for slow clients, over all streams of this process."""

    per_stream: int
    limit: int
    held: int = 0


class Owner(Protocol):
    """Whose answer it is."""

    def content_came(self) -> None:
        """The first of the answer itself came, not a comment."""

    def answer_ended(self, answer: Answer) -> None:
        """The engine is done with it, or it with the engine."""

    def pump(self) -> None:
        """Pass on what has come."""


class Answer(Receiver):
    """Receives one call's answer; the line to the client takes it out again."""

    __slots__ = (
        "_buffers", "_chunks", "_client", "_counts", "_decoder", "_drop_usage", "_keep_chunks",
        "_kind", "_names_tier", "_owner", "_reader", "_size", "activity", "call", "ended", "error",
        "first_content_s", "headers", "is_asked_to_stream", "is_stream", "last_live_s", "loop",
        "passed", "started_s", "status", "usage",
    )  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        owner: Owner,
        buffers: Buffers,
        loop: asyncio.AbstractEventLoop,
        activity: Activity,
        *,
        drop_usage: bool,
        keep_chunks: bool,
        streams: bool,
        names_tier: str,
        counts: tuple[bool, bool] = (False, False),
    ) -> None:
        # First what each event looks at, so that it lies close together.
        self.passed = 0  # bytes of the body that came
        self._decoder: coding.Decoder | None = None
        self._reader: StreamReader | PlainReader | None = None
        self.started_s = self.last_live_s = loop.time()
        self.loop = loop
        self.activity = activity  # of the replica it comes from
        self.first_content_s: float | None = None
        self._keep_chunks = keep_chunks
        self._client: Client | None = None  # what comes goes straight to it
        self._size = 0  # of the chunks
        self.ended = False
        self.call: Call | None = None
        self.status = 0  # 0: no head yet
        self.headers: Headers = []
        self.is_stream = False  # the engine streams events
        self.usage = Usage()  # what the answer has told about itself so far
        self.error: UpstreamError | None = None
        self.is_asked_to_stream = streams
        self._kind = kind
        self._owner: Owner | None = owner
        self._buffers = buffers
        self._drop_usage = drop_usage
        self._names_tier = names_tier
        self._counts = counts  # along, and each choice apart (usage_reader)
        self._chunks: list[bytes] = []

    # What the call tells

    def head(self, status: int, headers: Headers) -> None:
        """Status and headers came."""
        self.status = status
        self.headers = headers
        kind = b""
        for name, value in headers:
            if name == b"content-type":
                kind = value
            elif name == b"content-encoding":
                self._decoder = coding.decoder(value)
        if status != 200:
            return
        self.is_stream = kind[:17].lower() == b"text/event-stream"
        if self.is_stream:
            self._reader = StreamReader(
                self._kind,
                drop_usage=self._drop_usage,
                keep_chunks=self._keep_chunks,
                names_tier=self._names_tier,
                counts_along=self._counts[0],
                counts_apart=self._counts[1],
            )
        else:
            self._reader = PlainReader(self._names_tier)
        self.usage = self._reader.usage

    def body(self, data: bytes) -> None:
        """Bytes of the body came."""
        self.passed += len(data)
        if self._decoder is not None:
            try:
                data = self._decoder.decode(data)
            except coding.BadCoding:
                if self.call is not None:
                    self.call.close()
                return
        reader = self._reader
        if reader is None:
            if self._size < ERROR_LIMIT:
                self._hold(data)
            return
        data = reader.feed(data)
        if reader.live:
            self.last_live_s = self.activity.moved_s = self.loop.time()
            if self.first_content_s is None and self.usage.content_events:
                self.first_content_s = self.last_live_s
                if self._owner is not None:
                    self._owner.content_came()
        if data and not self._keep_chunks:
            self._pass_on(data)

    def end(self) -> None:
        """The answer is complete as HTTP; whether it is whole, the reader knows."""
        self._over()

    def lost(self, error: UpstreamError) -> None:
        """The answer broke off, or never began."""
        self.error = error
        self._over()

    def _over(self) -> None:
        if self._reader is not None:
            rest = self._reader.close()
            if rest and not self._keep_chunks:
                self._hold(rest)
        self.ended = True
        if self._owner is not None:
            self._owner.answer_ended(self)

    def turn(self) -> None:
        """That was all for now."""
        is_passed_on = self._client is not None and not self._size and not self.ended
        if not is_passed_on and self._owner is not None:
            self._owner.pump()

    # What the client's side takes

    def pass_to(self, client: Client) -> None:
        """Write what comes from now on straight to the client, while it takes it."""
        self._client = client

    def _pass_on(self, data: bytes) -> None:
        client = self._client
        if client is None or self._size or client.is_slow:
            self._hold(data)
        else:
            client.write(data)

    def _hold(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        buffers = self._buffers
        buffers.held += len(data)
        is_full = self._size > buffers.per_stream or buffers.held > buffers.limit
        if is_full and self.call is not None:
            self.call.pause()

    def take(self) -> bytes:
        """Return what has come since the last time."""
        chunks = self._chunks
        if not chunks:
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._buffers.held -= self._size
        self._size = 0
        if self.call is not None:
            self.call.resume()
        return data

    def forget(self) -> None:
        """Nobody will read the rest, and nobody wants to hear of it."""
        self._owner = None
        self._client = None
        self.call = None
        self._chunks.clear()
        self._buffers.held -= self._size
        self._size = 0

    @property
    def held(self) -> bool:
        """Tell whether there is something to take."""
        return bool(self._chunks)

    @property
    def paused(self) -> bool:
        """Tell whether we made the engine wait for the client."""
        return self._size > self._buffers.per_stream

    @property
    def chunks(self) -> list[dict[str, object]]:
        """Return the chunks of a stream that is to be assembled."""
        reader = self._reader
        return (reader.chunks or []) if isinstance(reader, StreamReader) else []

    @property
    def length(self) -> int | None:
        """Return the length of the body where the engine stated it and it still holds."""
        raw = first(self.headers, b"content-length")
        if self._decoder is not None or self._names_tier or raw is None or not raw.isdigit():
            return None
        return int(raw)


def engine_error(answer: Answer) -> GatewayError:
    """Put an engine's own error into our shape, its words kept."""
    message, kind, param = _read_error(answer.take())
    if answer.status == 401:
        # Not the client's: its key was good here and goes to no engine.
        return EngineFailed(
            "The engine refuses the key it is shown; an administrator has to correct it.",
            code="engine_key_refused",
        )
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
