"""Mangled bodies, requests and streams: never a 5xx of ours, never a held slot, never a hang."""

from __future__ import annotations

import base64
import json
import random
import socket
from typing import Any

import pytest

from gateway.core import fields
from gateway.core.fields import ALLOWED, NEVER_FROM_CLIENTS, BadField, Kind, Orders, Rules
from gateway.core.usage_reader import StreamReader
from gateway.engines.base import Page
from gateway.engines.detect import adapter
from tests.gateway.fleet.pages import recorded
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat
from tests.rig.waiting import wait_until

# What the gateway adds to a body of its own accord.
SET_BY_US = {"model", "stream", "stream_options", "priority", "cache_salt"}


def counts(short: int, long: int) -> pytest.MarkDecorator:
    """Run with a short count in every run and with a long one in `make test-long`."""
    marks = (pytest.mark.long, pytest.mark.timeout(1200))
    return pytest.mark.parametrize("count", [short, pytest.param(long, marks=marks)])


WORDS = [
    "model", "messages", "prompt", "input", "n", "stream", "max_tokens", "priority", "role",
    "content", "image_url", "url", "type", "tools", "stream_options", "best_of", "cache_salt",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, 1e308, -0.0, "", "x", "witness", "data:x", "http://a/",
    "\u0000", "🦜" * 50, [], {}, [[]], [1, 2], [{"role": "user", "content": "x"}],
]  # fmt: skip


def mangled(dice: random.Random, depth: int = 0) -> Any:
    """Make a value that has a chance of looking like a request."""
    roll = dice.random()
    if depth > 4 or roll < 0.4:
        return dice.choice(VALUES)
    if roll < 0.7:
        return {dice.choice(WORDS): mangled(dice, depth + 1) for _ in range(dice.randrange(5))}
    return [mangled(dice, depth + 1) for _ in range(dice.randrange(4))]


@counts(5_000, 200_000)
def test_bodies_are_built_right_or_refused(count: int) -> None:
    """What passes holds only allowed names and ours; everything else is a BadField."""
    dice, built = random.Random(11), 0
    for _ in range(count):
        kind = dice.choice(list(Kind))
        body = {**chat(), "prompt": "x", "input": "x"} if dice.random() < 0.7 else {"model": "m"}
        body |= {dice.choice(WORDS): mangled(dice) for _ in range(dice.randrange(6))}
        raw = json.dumps(body)
        if dice.random() < 0.2:  # broken as text
            at = dice.randrange(len(raw))
            raw = raw[:at] + dice.choice('{}[],:"\\x') + raw[at + 1 :]
        try:
            asked = fields.read(kind, raw.encode("utf-8", "surrogatepass"), Rules())
        except BadField:
            continue
        sent = json.loads(fields.build(asked, Orders("m", stream=asked.stream)))
        built += 1
        assert set(sent) <= ALLOWED[kind] | {"stream", "stream_options", "model"}
        assert not set(sent) & (NEVER_FROM_CLIENTS - {"stream", "stream_options"})
    assert built > 100


@pytest.mark.parametrize("drop", [True, False])
def test_a_thousand_mangled_streams_are_read_to_their_end(drop: bool) -> None:
    """Reading never raises, and without something to drop the bytes are the engine's."""
    dice = random.Random(23)
    for _ in range(1000):
        pieces = []
        for _ in range(dice.randrange(8)):
            data = json.dumps(mangled(dice)).encode()
            if dice.random() < 0.3:
                data = bytes(dice.randrange(256) for _ in range(dice.randrange(30)))
            head = dice.choice([b"data: ", b"data:", b"", b": ", b"event: x\ndata: "])
            pieces.append(head + data + dice.choice([b"\n\n", b"\r\n\r\n", b"\n", b""]))
        stream = b"".join(pieces)
        reader, out, start = StreamReader(dice.choice(list(Kind)), drop_usage=drop), b"", 0
        while start < len(stream):
            size = dice.choice((1, 3, 50, 4000))
            out += reader.feed(stream[start : start + size])
            start += size
        out += reader.close()
        if not drop:
            assert out == stream


@counts(2_000, 50_000)
def test_mangled_requests_leave_the_gateway_whole(stage: Stage, count: int) -> None:
    """
    Mutilated requests, each with a second one behind it: an error or a cut connection, and at the
    engine nothing but bodies we built, each with a record. Then a good one works at once.
    """
    secret = stage.books.key("mangler", in_flight=4)
    key = f"k{len(stage.books.keys)}"
    dice = random.Random(31)
    mark = f"fuzz{count}/1"
    body = json.dumps(chat(f"[mark:{mark}] x", max_tokens=1)).encode()
    good = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    chunked = good.replace(b"content-length: %d" % len(body), b"transfer-encoding: chunked")
    chunked = chunked.replace(body, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    for _ in range(count):
        raw = mutilated(dice, bytearray(dice.choice((good, chunked)) + good), 6)
        link = socket.create_connection(("127.0.0.1", stage.gateway.port), 5)
        try:
            link.sendall(raw)
            link.shutdown(socket.SHUT_WR)
            seen = link.recv(65536)
            assert not seen.startswith((b"HTTP/1.1 500", b"HTTP/1.1 502")), (bytes(raw), seen)
        except OSError:
            pass
        finally:
            link.close()

    stage.gateway.wait_settled()
    records = [r for r in stage.witness.records() if mark in r.body]
    ids = {dict(r.headers)["x-request-id"] for r in records}
    assert len(ids) == len(records)
    assert all(set(r.json) <= ALLOWED[Kind.CHAT] | SET_BY_US for r in records)

    def unrecorded() -> set[str]:
        return ids - {r.request_id for r in stage.books.records() if r.key_id == key}

    wait_until(lambda: not unrecorded(), 10, "each request at the engine has its record")
    assert stage.ask(secret).status_code == 200
    assert "Traceback" not in stage.gateway.log


def mutilated(dice: random.Random, raw: bytearray, most: int) -> bytearray:
    """Change, drop or add a few bytes, some of them where HTTP is touchy."""
    for _ in range(dice.randrange(1, most)):
        at = dice.randrange(len(raw))
        match dice.randrange(3):
            case 0:
                raw[at] = dice.randrange(256)
            case 1:
                del raw[at]
            case _:
                raw.insert(at, dice.choice(b"\r\n\x00 :,;"))
    return raw


CHUNKS: list[Any] = [
    {"choices": [{"index": 0, "delta": {"content": "x数"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
    {"choices": [], "usage": {"prompt_tokens": "7", "completion_tokens": -3}},
    {"choices": {"0": None}, "usage": [1, 2]},
    {"error": {"message": "told to break", "code": 500}},
    [1, 2], None, "x" * 20_000, 7,
]  # fmt: skip


def broken_stream(dice: random.Random) -> bytes:
    """Make an engine's stream that is good, truncated, doubled, of wrong types or no UTF-8."""
    picked = [CHUNKS[0], *dice.choices(CHUNKS, k=dice.randrange(5)), CHUNKS[1]]
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in picked]
    raw = b"".join(lines) + b"data: [DONE]\n\n" * dice.randrange(2)
    if dice.random() < 0.5:
        raw = bytes(mutilated(dice, bytearray(raw), 8))
    return raw[: dice.randrange(1, len(raw))] if dice.random() < 0.3 else raw


@counts(1_000, 20_000)
def test_mangled_engine_streams_leave_no_slot_held(stage: Stage, count: int) -> None:
    """
    Broken streams reach the client byte for byte; what is not whole ends in one clean error. Each
    has its record, and the key's one slot is free.
    """
    secret = stage.books.key("mangled", in_flight=1)
    dice, ids, cut = random.Random(41), {}, 0
    asked = chat(stream=True, stream_options={"include_usage": True})
    with stage.client(secret) as client:
        for number in range(count):
            raw = broken_stream(dice)
            stage.witness.tell(
                answer_b64=base64.b64encode(raw).decode(),
                answer_type="text/event-stream", cut="" if number % 4 else f"seed:{number}",
            )  # fmt: skip
            answer = client.post("/v1/chat/completions", json=asked)
            assert answer.status_code == 200
            assert answer.content.startswith(raw), number
            if rest := answer.content[len(raw) :]:
                cut += 1
                told = json.loads(rest.strip().removeprefix(b"data: "))
                assert told["error"]["code"] == "engine_stream_broken", number
            ids[answer.headers["x-request-id"]] = bool(rest)
    assert 0 < cut < count

    def rows() -> dict[str, str]:
        return {r.request_id: r.outcome for r in stage.books.records() if r.request_id in ids}

    wait_until(lambda: len(rows()) == count, 20, "each stream has its record")
    outcomes = rows()
    assert all(outcomes[one] == "failed" for one, was_cut in ids.items() if was_cut)
    assert "served" in outcomes.values()
    assert "Traceback" not in stage.gateway.log


PAGES = {
    "vllm": ("/metrics", "/v1/models", "/version"),
    "llamacpp": ("/metrics", "/slots", "/props", "/v1/models"),
    "sglang": ("/metrics",),
}


@counts(200, 2_000)
@pytest.mark.parametrize("kind", PAGES)
def test_mangled_pages_of_engines_never_raise(kind: str, count: int) -> None:
    """Recorded pages with bytes changed, cut or doubled: what is read is a count or unknown."""
    engine, dice, known = adapter(kind), random.Random(kind), 0
    real = {
        path: recorded("vllm" if kind == "sglang" else kind, path.rpartition("/")[2])
        for path in PAGES[kind]
    }
    for _ in range(count):
        pages = {
            path: Page(200, spoiled(dice, answer.body), answer.headers)
            for path, answer in real.items()
        }
        reading, facts = engine.reading(pages), engine.facts(pages)
        assert engine.advice(facts, pages) is not None
        for name in ("running", "waiting", "prompt_tokens_total", "completion_tokens_total"):
            value = getattr(reading, name)
            assert value is None or value >= 0
            known += value is not None
        assert reading.kv_usage is None or 0 <= reading.kv_usage <= 1
        assert facts.slots is None or facts.slots >= 0
    assert known > 0 or kind == "sglang"


def spoiled(dice: random.Random, body: bytes) -> bytes:
    """Return a page as a broken engine or a broken way to it might show it."""
    raw = bytes(mutilated(dice, bytearray(body), 40)) if body else b""
    match dice.randrange(4):
        case 0:
            return raw[: dice.randrange(len(raw) + 1)]
        case 1:
            return raw + raw
        case 2:
            return raw.replace(b" 1", b" NaN").replace(b": 1", b": -1e999")
    return raw
