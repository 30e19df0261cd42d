"""A cheap engine and a load generator in one process: neither parses more than it must.

Both are asyncio protocols on uvloop, so that the proxy between them is what is measured. What
counts is the proxy's CPU time for a piece of work; it hardly depends on how busy the machine is
otherwise.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

END = b"0\r\n\r\n"
TOKENS, TOKENS_PER_S = 250, 50  # of a chat's usual answer


def _event(payload: str) -> bytes:
    data = f"data: {payload}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _chunk(delta: str, reason: str = "null") -> str:
    return (
        '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"bench",'
        f'"choices":[{{"index":0,"delta":{delta},"finish_reason":{reason}}}]}}'
    )


PLAIN_BODY = json.dumps(
    {"id": "chatcmpl-1", "object": "chat.completion", "created": 1790000000, "model": "bench",
     "choices": [{"index": 0, "finish_reason": "stop",
                  "message": {"role": "assistant", "content": "word " * 64}}],
     "usage": {"prompt_tokens": 120, "completion_tokens": 64, "total_tokens": 184}}
).encode()  # fmt: skip
PLAIN = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
    + str(len(PLAIN_BODY)).encode()
    + b"\r\n\r\n"
    + PLAIN_BODY
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
FIRST = _event(_chunk('{"role":"assistant","content":""}'))
_STAMP = b"1790000000"
TOKEN = _event(_chunk('{"content":"word "}'))


def stamped() -> bytes:
    """Return a token that says when it was sent; as long as any other, so chunks stay the same."""
    return TOKEN.replace(_STAMP, b"%010d" % (time.perf_counter_ns() // 1000 % 10**10))


LAST = (
    _event(_chunk("{}", '"stop"'))
    + _event(
        '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"bench",'
        '"choices":[],"usage":{"prompt_tokens":120,'
        f'"completion_tokens":{TOKENS},"total_tokens":{120 + TOKENS}}}}}'
    )
    + _event("[DONE]")
    + END
)


def _content_length(lowered: bytes) -> int:
    """Return the length a head names in lower case; 0 where a router's probe has no body."""
    _, found, rest = lowered.partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


class Engine(asyncio.Protocol):
    """Answers each POST at once, or as a stream in step with all the others."""

    streams: set[Engine] = set()

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.left = 0
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        Engine.streams.discard(self)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self._buffer += data
        head, split, rest = self._buffer.partition(b"\r\n\r\n")
        if not split:
            return
        if head.startswith(b"GET"):
            self._buffer = b""
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        if len(rest) < _content_length(head.lower()):
            return
        self._buffer = b""
        if b'"stream":true' in rest or b'"stream": true' in rest:
            self.left = TOKENS
            Engine.streams.add(self)
            self.transport.write(STREAM_HEAD + FIRST)
        else:
            self.transport.write(PLAIN)

    def step(self, token: bytes) -> None:
        """Send the next token."""
        assert self.transport is not None
        if self.left:
            self.left -= 1
            self.transport.write(token)
        else:
            Engine.streams.discard(self)
            self.transport.write(LAST)


async def decode(per_s: float = TOKENS_PER_S) -> None:
    """Let every stream have one token a step, as an engine's batch does; steps keep their time."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + 1 / per_s, loop.time() - 1 / per_s)
        await asyncio.sleep(max(0.0, due - loop.time()))
        token = stamped()
        for stream in tuple(Engine.streams):
            stream.step(token)


@dataclass
class Counts:
    """What a run has seen."""

    answers: int = 0
    events: int = 0
    errors: int = 0
    latencies: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    delays_us: list[int] = field(default_factory=list)  # of events, from engine to client

    def take(self) -> Counts:
        """Return what was seen since the last time, and begin anew."""
        taken = replace(self)
        self.__init__()  # type: ignore[misc]
        return taken


class Load(asyncio.Protocol):
    """One connection that asks again as soon as it has its answer."""

    made = 0

    def __init__(
        self, request: Callable[[], bytes], counts: Counts, is_over: Callable[[], bool]
    ) -> None:
        self._request, self._counts, self._is_over = request, counts, is_over
        self.transport: asyncio.Transport | None = None
        self.done = asyncio.get_running_loop().create_future()
        self._began = 0.0
        self._size = 0
        self._wanted = -1
        self._tail = b""
        self._streams = False
        Load.made += 1
        self._is_sample = Load.made % 8 == 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            if not self._is_over():
                self._counts.errors += 1
            self.done.set_result(None)

    def _ask(self) -> None:
        assert self.transport is not None
        if self._is_over():
            self.transport.close()
            return
        self._began, self._size, self._wanted = time.perf_counter(), 0, -1
        self._tail = b""
        self.transport.write(self._request())

    def data_received(self, data: bytes) -> None:
        if self._wanted < 0:
            data = self._head(data)
        if self._streams:
            self._counts.events += data.count(b"data: ")
            self._note_delay(data)
            if not self._size:
                self._counts.first.append(time.perf_counter() - self._began)
            self._size += len(data)
            self._tail = (self._tail + data)[-7:]
            is_whole = self._tail.endswith(b"\r\n" + END)
        else:
            self._size += len(data)
            is_whole = self._size >= self._wanted
        if is_whole:
            self._counts.answers += 1
            self._counts.latencies.append(time.perf_counter() - self._began)
            self._ask()

    def _note_delay(self, data: bytes) -> None:
        """Take the time the last event of a piece was on its way; some streams stand for all."""
        if not self._is_sample:
            return
        at = data.rfind(b'"created":')
        if at >= 0 and data[at + 10 : at + 20].isdigit():
            sent = int(data[at + 10 : at + 20])
            if sent != int(_STAMP):
                now = time.perf_counter_ns() // 1000 % 10**10
                self._counts.delays_us.append((now - sent) % 10**10)

    def _head(self, data: bytes) -> bytes:
        head, _, rest = data.partition(b"\r\n\r\n")
        if b" 200 " not in head[:20]:
            self._counts.errors += 1
        lowered = head.lower()
        self._streams = b"chunked" in lowered
        self._wanted = 1 << 60
        if not self._streams:
            self._wanted = _content_length(lowered)
        return rest


def request(
    port: int, secret: str, *, stream: bool, characters: int = 512, headers: str = ""
) -> bytes:
    """Return one request as it goes on the wire."""
    body = json.dumps(
        {"model": "bench", "stream": stream,
         "messages": [{"role": "user", "content": "word " * (characters // 5)}]}
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {secret}\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def of_strangers(raw: bytes) -> Callable[[], bytes]:
    """Return what makes requests like this one, each the first of a conversation of its own."""
    before, words, after = raw.partition(b"word word word word ")
    numbers = itertools.count()
    return lambda: before + b"%0*d" % (len(words), next(numbers)) + after


@asynccontextmanager
async def under_load(
    port: int, raw: bytes | Callable[[], bytes], connections: int, *, apart_s: float = 0.0
) -> AsyncIterator[Counts]:
    """Keep `connections` busy meanwhile; each begins `apart_s` after the one before.

    Whoever measures takes the counts of a stretch with `Counts.take`, once all have begun.
    """
    request = (lambda: raw) if isinstance(raw, bytes) else raw
    loop, counts, over = asyncio.get_running_loop(), Counts(), asyncio.Event()
    loads = []
    for _ in range(connections):
        made = await loop.create_connection(
            lambda: Load(request, counts, over.is_set), "127.0.0.1", port
        )
        loads.append(made[1])
        await asyncio.sleep(apart_s)
    try:
        yield counts
    finally:
        over.set()
        for load in loads:
            if load.transport is not None and not load.done.done():
                load.done.set_result(None)
                load.transport.abort()
