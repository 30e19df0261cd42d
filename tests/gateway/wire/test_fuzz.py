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
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat

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


def test_five_thousand_bodies_are_built_right_or_refused() -> None:
    """What passes holds only allowed names and ours; everything else is a BadField."""
    dice, built = random.Random(11), 0
    for _ in range(5000):
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


def test_mangled_requests_leave_the_gateway_whole(stage: Stage) -> None:
    """400 mutilated requests: an error or a cut connection each, then a good one works at once."""
    secret = stage.books.key(in_flight=2)
    dice = random.Random(31)
    body = json.dumps(chat("[mark:fuzz/1] x")).encode()
    good = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    for _ in range(400):
        raw = bytearray(good)
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(raw))
            match dice.randrange(3):
                case 0:
                    raw[at] = dice.randrange(256)
                case 1:
                    del raw[at]
                case _:
                    raw.insert(at, dice.choice(b"\r\n\x00 :,;"))
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

    assert stage.ask(secret).status_code == 200
    assert "Traceback" not in stage.gateway.log


def test_mangled_engine_streams_leave_no_slot_held(stage: Stage) -> None:
    """150 broken streams from the engine end for the client, and the key's one slot is free."""
    secret = stage.books.key(in_flight=1)
    dice = random.Random(41)
    good = "".join(
        f"data: {json.dumps(chunk)}\n\n"
        for chunk in (
            {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": "7", "completion_tokens": -3}},
        )
    ).encode()
    with stage.client(secret) as client:
        for number in range(150):
            raw = bytearray(good)
            for _ in range(dice.randrange(1, 8)):
                raw[dice.randrange(len(raw))] = dice.randrange(256)
            stage.witness.tell(
                answer_b64=base64.b64encode(raw[: dice.randrange(1, len(raw))]).decode(),
                answer_type="text/event-stream", cut=f"seed:{number}",
            )  # fmt: skip
            answer = client.post("/v1/chat/completions", json=chat(stream=True))
            assert answer.status_code == 200
    assert "Traceback" not in stage.gateway.log
