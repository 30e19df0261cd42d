"""A client may leave at any moment: its slot is free, its engine stops, its record is written."""

from __future__ import annotations

import json
import random
import socket
import time
from typing import Any

import pytest

from quotas.snapshots.usage import UsageRecord
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat
from tests.rig.waiting import wait_until


def connect(stage: Stage, secret: str, body: dict[str, Any]) -> socket.socket:
    """Send a chat request over a bare socket."""
    raw = json.dumps(body).encode()
    link = socket.create_connection(("127.0.0.1", stage.gateway.port), 10)
    link.sendall(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
        + raw
    )
    return link


def read_until(link: socket.socket, text: bytes) -> bytes:
    """Read until the text has come."""
    seen = b""
    while text not in seen:
        data = link.recv(65536)
        assert data, seen
        seen += data
    return seen


def outcomes(stage: Stage, mark: str) -> list[str]:
    """Return how the engine saw the requests of a mark end."""
    return [r.outcome for r in stage.witness.records() if r.mark.startswith(mark)]


def aborted(stage: Stage) -> list[UsageRecord]:
    """Return the records of requests whose clients left."""
    return [record for record in stage.books.records() if record.outcome == "aborted"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["prefill", "decode"])
def test_the_engine_stops_when_the_client_leaves(stage: Stage, state: str, stream: bool) -> None:
    """Before the first byte and mid-answer, streamed or not: engine and slot are free in 2 s."""
    secret = stage.books.key(in_flight=1)
    mark = f"leave-{state}-{stream}"
    stage.witness.tell(tokens=500, decode_tps=20, first_delay_s=30 if state == "prefill" else 0)
    known = len(aborted(stage))

    link = connect(stage, secret, chat(f"[mark:{mark}/1] x", stream=stream, max_tokens=400))
    wait_until(lambda: stage.witness.counters()["running"] == 1, 5, "the engine works")
    if state == "decode" and stream:
        read_until(link, b"w1 ")
    link.close()

    wait_until(lambda: stage.witness.counters()["running"] == 0, 2, "the engine has stopped")
    stage.gateway.wait_settled(2)
    wait_until(lambda: len(aborted(stage)) == known + 1, 5, "its record is written")
    record = aborted(stage)[-1]
    assert record.prompt_tokens > 0
    if state == "decode" and stream:
        assert record.estimated
        assert record.completion_tokens >= 2
    stage.witness.reset()
    assert stage.ask(secret).status_code == 200


def test_fifty_cut_streams_hold_no_slot(stage: Stage) -> None:
    """A key with one slot still has it after fifty streams cut after three chunks."""
    secret = stage.books.key(in_flight=1)
    stage.witness.tell(tokens=200, decode_tps=200)

    for _ in range(50):
        link = connect(stage, secret, chat("[mark:cut/1] x", stream=True, max_tokens=200))
        read_until(link, b"w2 ")
        link.close()

    stage.witness.reset()
    began = time.monotonic()
    assert stage.ask(secret).status_code == 200
    assert time.monotonic() - began < 2


def test_who_leaves_the_queue_never_reaches_the_engine(stage: Stage) -> None:
    """Twenty requests queued behind a long one are dropped: the engine hears of none of them."""
    secret = stage.books.key(in_flight=1, queued=20)
    stage.witness.tell(tokens=50, decode_tps=25)
    running = connect(stage, secret, chat("[mark:gone-first/1] x", stream=True, max_tokens=40))
    read_until(running, b"data:")

    links = [connect(stage, secret, chat("[mark:gone/1] x")) for _ in range(8)]
    wait_until(lambda: len(stage.gateway.live()["queued"]) == 8, 5, "eight are queued")
    for link in links:
        link.close()

    wait_until(lambda: not stage.gateway.live()["queued"], 2, "the queue is empty")
    running.close()
    stage.gateway.wait_settled()
    assert outcomes(stage, "gone/") == []
    gone = [r for r in stage.books.records() if r.outcome == "evicted_client_gone"]
    assert len(gone) >= 8
    assert {(r.replica_id, r.completion_tokens) for r in gone} == {("", 0)}


def test_two_hundred_leave_at_random(stage: Stage) -> None:
    """In whatever state they are: no slot held, no engine call left, the next twenty are fast."""
    keys = [stage.books.key(f"user{n}", in_flight=2, queued=8) for n in range(10)]
    stage.witness.tell(tokens=30, decode_tps=100, first_delay_s=0.05)
    dice = random.Random(3)

    links: list[tuple[float, socket.socket]] = []
    for number in range(200):
        body = chat("[mark:crowd/1] x", stream=dice.random() < 0.7, max_tokens=30)
        links.append(
            (time.monotonic() + dice.random() * 0.4, connect(stage, keys[number % 10], body))
        )
        now = time.monotonic()
        for due, link in [entry for entry in links if entry[0] <= now]:
            link.close()
            links.remove((due, link))
        time.sleep(0.005)
    for _, link in links:
        link.close()

    stage.gateway.wait_settled(4)
    wait_until(lambda: stage.witness.idle(), 2, "the engine is idle")
    stage.witness.reset()
    for number in range(20):
        began = time.monotonic()
        assert stage.ask(keys[number % 10]).status_code == 200
        assert time.monotonic() - began < 1
    records = stage.books.records()
    assert len({r.request_id for r in records}) == len(records)
