"""One engine's answer on its way to the client: reads it on the side, holds what is not sent yet.

Engines generate however fast the client reads, so the answer is taken at full speed into a bounded
buffer and its slot is given back when the engine ends, not when the client has read everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway import coding
from gateway.bell import Bell
from gateway.core.fields import Kind
from gateway.core.headers import Headers, first
from gateway.core.usage_reader import PlainReader, StreamReader, Usage
from gateway.upstream import Call, UpstreamError

ERROR_LIMIT = 64 * 1024  # of an engine's error body


@dataclass(slots=True)
class Buffers:
    """Bytes held for slow clients, over all streams of this process."""

    per_stream: int
    limit: int
    held: int = 0


def _ignore(_: object) -> None:
    return


class Answer:
    """Receives one call's answer; the request's loop takes it out again."""

    __slots__ = (
        "_bell", "_buffers", "_chunks", "_decoder", "_drop_usage", "_keep_chunks", "_kind", "_now",
        "_on_content", "_on_end", "_reader", "_size", "call", "ended", "error", "first_content_s",
        "headers", "is_asked_to_stream", "is_stream", "last_live_s", "passed", "started_s",
        "status", "usage",
    )  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        bell: Bell,
        buffers: Buffers,
        now: Callable[[], float],
        *,
        drop_usage: bool,
        keep_chunks: bool,
        streams: bool,
        on_content: Callable[[bool], None],
        on_end: Callable[[Answer], None],
    ) -> None:
        self.call: Call | None = None
        self.status = 0  # 0: no head yet
        self.headers: Headers = []
        self.is_stream = False  # the engine streams events
        self.usage = Usage()  # what the answer has told about itself so far
        self.ended = False
        self.error: UpstreamError | None = None
        self.started_s = self.last_live_s = now()
        self.first_content_s: float | None = None
        self.is_asked_to_stream = streams
        self.passed = 0  # bytes of the body that came
        self._kind = kind
        self._bell = bell
        self._buffers = buffers
        self._now = now
        self._drop_usage = drop_usage
        self._keep_chunks = keep_chunks
        self._on_content = on_content
        self._on_end = on_end
        self._chunks: list[bytes] = []
        self._size = 0
        self._reader: StreamReader | PlainReader | None = None
        self._decoder: coding.Decoder | None = None

    # What the call tells

    def head(self, status: int, headers: Headers) -> None:
        """Status and headers came."""
        self.status = status
        self.headers = headers
        self._decoder = coding.decoder(first(headers, b"content-encoding"))
        if status == 200:
            kind = first(headers, b"content-type") or b""
            self.is_stream = kind.lower().startswith(b"text/event-stream")
            if self.is_stream:
                self._reader = StreamReader(
                    self._kind, drop_usage=self._drop_usage, keep_chunks=self._keep_chunks
                )
            else:
                self._reader = PlainReader()
            self.usage = self._reader.usage
        self._bell.ring()

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
            self.last_live_s = self._now()
            is_first = self.first_content_s is None and reader.usage.content_events > 0
            if is_first:
                self.first_content_s = self.last_live_s
            self._on_content(is_first)
        if data and not self._keep_chunks:
            self._hold(data)
        self._bell.ring()

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
        self._on_end(self)
        self._bell.ring()

    # What the client's side takes

    def _hold(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        self._buffers.held += len(data)
        buffers = self._buffers
        is_full = self._size > buffers.per_stream or buffers.held > buffers.limit
        if is_full and self.call is not None:
            self.call.pause()

    def take(self) -> bytes:
        """Return what has come since the last time."""
        if not self._chunks:
            return b""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffers.held -= self._size
        self._size = 0
        if self.call is not None:
            self.call.resume()
        return data

    def forget(self) -> None:
        """Nobody will read the rest, and nobody wants to hear of it."""
        self.call = None
        self._on_content = self._on_end = _ignore
        self._chunks.clear()
        self._buffers.held -= self._size
        self._size = 0

    @property
    def paused(self) -> bool:
        """Tell whether we made the engine wait for the client."""
        return self._size > self._buffers.per_stream

    @property
    def holds(self) -> int:
        """Bytes not taken yet."""
        return self._size

    @property
    def chunks(self) -> list[dict[str, object]]:
        """Return the chunks of a stream that is to be assembled."""
        reader = self._reader
        return (reader.chunks or []) if isinstance(reader, StreamReader) else []

    @property
    def length(self) -> int | None:
        """Return the length of the body where the engine stated it and it still holds."""
        raw = first(self.headers, b"content-length")
        if self._decoder is not None or raw is None or not raw.isdigit():
            return None
        return int(raw)
