"""A simulated engine: so many slots, a time for each token, and little CPU of its own.

A request holds a slot for its prompt (unless its beginning is still in the prefix cache) and for
its answer's tokens. With all times at zero nothing is parsed and every request is answered at
once. `GET /stats` tells what it did; `POST /tell` changes its times.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import random
import time
from collections import OrderedDict, deque
from dataclasses import dataclass

import orjson
import uvloop

VERSION = b'{"version":"0.32.0"}'
WORDS = "word " * 4
END = b"0\r\n\r\n"


@dataclass
class Times:
    """How long things take; zero is at once."""

    slots: int = 8
    token_s: float = 0.0
    prompt_token_s: float = 0.0
    prefixes: int = 0  # beginnings of prompts the cache holds; 0: it holds none
    median: float = 0.0  # tokens of an answer, log-normal around it; 0: as many as asked for
    sigma: float = 0.6
    model: str = "bench"


@dataclass
class Books:
    """What the engine has done since it started."""

    served: int = 0
    tokens: int = 0
    busy_s: float = 0.0  # summed over slots
    cached: int = 0
    gone: int = 0


def _answer(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status, kind, len(body), body,
    )  # fmt: skip


def completion(model: str, prompt: int, tokens: int, reason: str = "stop") -> bytes:
    """Return a chat answer with its counts."""
    return orjson.dumps(
        {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1790000000, "model": model,
            "choices": [{"index": 0, "finish_reason": reason,
                         "message": {"role": "assistant", "content": WORDS}}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": tokens,
                      "total_tokens": prompt + tokens},
        }
    )  # fmt: skip


def streamed(model: str, prompt: int, tokens: int, reason: str = "stop") -> bytes:
    """Return the same as a stream that comes in one piece."""
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": model}
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    events = [
        {**common, "choices": [{"index": 0, "delta": {"role": "assistant", "content": WORDS}}]},
        {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {**common, "choices": [], "usage": usage},
    ]
    data = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    return b"%b\r\n%x\r\n%b\r\n%b" % (head, len(data), data, END)


class Engine:
    """The slots, first come first served, and the books."""

    def __init__(self, times: Times) -> None:
        self.times, self.books = times, Books()
        self.running = 0
        self.queue: deque[tuple[Connection, bytes]] = deque()
        self.prefixes: OrderedDict[bytes, None] = OrderedDict()
        self.quick = _answer(completion(times.model, 120, 4))

    def arrive(self, connection: Connection, body: bytes) -> None:
        """Take a request."""
        if not self.times.token_s and b'"stream":true' not in body:
            self.books.served += 1
            connection.send(self.quick)
            return
        self.queue.append((connection, body))
        self._fill()

    def _fill(self) -> None:
        while self.queue and self.running < self.times.slots:
            connection, body = self.queue.popleft()
            if connection.is_open:
                self._start(connection, body)

    def _start(self, connection: Connection, raw: bytes) -> None:
        body = orjson.loads(raw)
        prompt, read = self._prompt(body["messages"])
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        tokens = self._length(raw, asked)
        held = tokens * self.times.token_s + read * self.times.prompt_token_s
        self.running += 1
        make = streamed if body.get("stream") else completion
        whole = make(self.times.model, prompt, tokens, "length" if tokens == asked else "stop")
        answer = whole if body.get("stream") else _answer(whole)
        asyncio.get_running_loop().call_later(
            held, self._end, connection, answer, tokens, time.monotonic()
        )

    def _length(self, raw: bytes, asked: int | None) -> int:
        """Return how long an answer is: the same request has the same answer."""
        if not self.times.median:
            return int(asked or 16)
        drawn = self.times.median * random.Random(raw).lognormvariate(0, self.times.sigma)
        return max(1, min(round(drawn), asked or 1 << 20))

    def _prompt(self, messages: list[dict[str, str]]) -> tuple[int, int]:
        """Return the prompt's tokens, and those that must be read because no cache holds them."""
        sizes = [len(message["content"]) // 4 for message in messages]
        if not self.times.prefixes or len(messages) < 2:
            return sum(sizes), sum(sizes)
        name = hashlib.blake2b(messages[0]["content"].encode(), digest_size=8).digest()
        known = name in self.prefixes
        self.prefixes[name] = None
        self.prefixes.move_to_end(name)
        while len(self.prefixes) > self.times.prefixes:
            self.prefixes.popitem(last=False)
        self.books.cached += sizes[0] if known else 0
        return sum(sizes), sum(sizes[1:]) if known else sum(sizes)

    def _end(self, connection: Connection, answer: bytes, tokens: int, began_s: float) -> None:
        self.running -= 1
        self.books.busy_s += time.monotonic() - began_s
        if connection.is_open:
            self.books.served += 1
            self.books.tokens += tokens
            connection.send(answer)
        else:
            self.books.gone += 1
        self._fill()

    def page(self, path: bytes) -> bytes:
        """Return one of the pages a prober reads."""
        model = self.times.model
        if path == b"/v1/models":
            entry = {"id": model, "object": "model", "owned_by": "vllm", "max_model_len": 1 << 20}
            return _answer(orjson.dumps({"object": "list", "data": [entry]}))
        if path == b"/version":
            return _answer(VERSION)
        if path == b"/stats":
            now = {"running": self.running, "waiting": len(self.queue), "at_s": time.monotonic()}
            return _answer(orjson.dumps(dataclasses.asdict(self.books) | now))
        if path == b"/metrics":
            label = f'{{engine="0",model_name="{model}"}}'
            text = (
                f"vllm:num_requests_running{label} {self.running}.0\n"
                f"vllm:num_requests_waiting{label} {len(self.queue)}.0\n"
                f"vllm:generation_tokens_total{label} {self.books.tokens}.0\n"
            )
            return _answer(text.encode(), b"text/plain; version=0.0.4")
        return _answer(b"")

    def tell(self, body: bytes) -> bytes:
        """Change the times."""
        self.times = dataclasses.replace(self.times, **orjson.loads(body))
        return _answer(b"{}")


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._buffer = engine, b""
        self._transport: asyncio.Transport | None = None
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False

    def send(self, data: bytes) -> None:
        """Write an answer."""
        assert self._transport is not None
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, split, rest = self._buffer.partition(b"\r\n\r\n")
        if not split:
            return
        lowered = head.lower()
        at = lowered.find(b"content-length:")
        length = int(lowered[at + 15 :].partition(b"\r\n")[0]) if at >= 0 else 0
        if len(rest) < length:
            return
        body, self._buffer = rest[:length], rest[length:]
        method, path, _ = head.split(b" ", 2)
        if method == b"GET":
            self.send(self._engine.page(path))
        elif path == b"/tell":
            self.send(self._engine.tell(body))
        else:
            self._engine.arrive(self, body)


async def main(port: int, times: Times) -> None:
    """Serve until killed."""
    engine = Engine(times)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("times", type=orjson.loads, help="a JSON object")
    given = parser.parse_args()
    uvloop.run(main(given.port, Times(**given.times)))
