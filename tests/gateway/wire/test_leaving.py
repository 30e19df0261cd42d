"""A client may leave at any moment: its slot is free, its engine stops, its record is written."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from quotas.snapshots.usage import UsageRecord
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat
from tests.rig.waiting import wait_until
from tests.rig.witness import peak


def connect(stage: Stage, secret: str, body: dict[str, Any]) -> socket.socket:
    """Send a chat request over a bare socket."""
    return stage.gateway.connect(secret, body)


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


def test_a_cut_stream_is_counted_by_its_tokens_not_its_events(stage: Stage) -> None:
    """
    An engine that packs tokens and counts along: the record of a stream that was cut has at least
    what the client read and at most what was made, and no event shows the count.
    """
    secret = stage.books.key(in_flight=1)
    stage.witness.tell(tokens=400, decode_tps=100, packs=8, counts_along=True)
    known = len(aborted(stage))

    link = connect(stage, secret, chat("[mark:packed/1] x", stream=True))
    seen = read_until(link, b"w39 ")
    link.close()

    wait_until(lambda: len(aborted(stage)) == known + 1, 5, "its record is written")
    record = aborted(stage)[-1]
    made = next(r.tokens for r in stage.witness.records() if r.mark == "packed/1")
    assert 40 <= record.completion_tokens <= made < 80
    assert record.estimated
    assert b"usage" not in seen


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


STATES = ["queued", "granted", "before_first_byte", "mid_stream", "twice"]


class Leaver(threading.Thread):
    """A client that leaves at a random moment of one state of its request."""

    def __init__(self, stage: Stage, secret: str, number: int, state: str) -> None:
        super().__init__()
        self.stage, self.secret, self.state = stage, secret, state
        self.mark = f"{state}/{number}"
        self.dice = random.Random(number)
        self.left_s = 0.0

    def run(self) -> None:
        """Ask, and leave; one that leaves twice comes back with the same words and leaves again."""
        for _ in range(1 + (self.state == "twice")):
            stream = self.state == "mid_stream" or self.dice.random() < 0.5
            body = chat(f"[mark:{self.mark}] x", stream=stream, max_tokens=200)
            with contextlib.suppress(ConnectionError, TimeoutError):
                link = self.stage.gateway.connect(self.secret, body)
                with contextlib.closing(link):
                    self._stay(link)
                    self.left_s = time.monotonic()
                    if self.dice.random() < 0.3:  # a reset instead of a plain end
                        off = struct.pack("ii", 1, 0)
                        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, off)

    def _stay(self, link: socket.socket) -> None:
        if self.state == "granted":  # gone while the gateway is still opening its connection
            time.sleep(self.dice.random() * 0.004)
            return
        if self.state == "mid_stream":
            link.settimeout(10)
            link.recv(65536)
        time.sleep(self.dice.random() * 0.4)


def test_two_hundred_leave_in_every_state(stage: Stage) -> None:
    """
    Two hundred clients leave queued, just granted, before the first byte, mid-stream and twice:
    the engine sees each connection closed within 2 s, no slot and no place in a pool is lost, and
    the next twenty plain requests are fast.
    """
    patient = {"in_flight": 8, "queued": 60}
    roomy = stage.books.key("roomy", **patient, person=patient)
    narrow = stage.books.key("narrow", in_flight=1, queued=60, person={"in_flight": 1})
    stage.witness.tell(
        tokens=200, decode_tps=100, rules={"before_first_byte": {"first_delay_s": 30.0}}
    )
    leavers = [
        Leaver(stage, narrow if number % 5 == 0 else roomy, number, STATES[number % 5])
        for number in range(200)
    ]
    for start in range(0, 200, 25):
        for leaver in leavers[start : start + 25]:
            leaver.start()
        for leaver in leavers[start : start + 25]:
            leaver.join(30)

    stage.gateway.wait_settled(4)
    wait_until(stage.witness.idle, 2, "the engine is idle")
    left_s = {leaver.mark: leaver.left_s for leaver in leavers}
    seen = [r for r in stage.witness.records() if r.mark in left_s]
    late_s = {r.mark: r.ended_s - left_s[r.mark] for r in seen if r.ended_s and r.owner != "twice"}
    assert {r.owner for r in seen} >= {"before_first_byte", "mid_stream"}
    assert all(r.ended_s is not None for r in seen)
    assert max(late_s.values()) < 2, sorted(late_s.items(), key=lambda one: one[1])[-5:]
    stage.witness.reset()
    for number in range(20):
        began = time.monotonic()
        assert stage.ask(roomy if number % 2 else narrow).status_code == 200
        assert time.monotonic() - began < 1
    stage.witness.tell(first_delay_s=0.5)
    known = len(stage.witness.records())
    with ThreadPoolExecutor(8) as crowd:
        statuses = [a.status_code for a in crowd.map(lambda _: stage.ask(roomy), range(8))]
    assert statuses == [200] * 8
    assert peak(stage.witness.records()[known:]) == 8, "a slot or a place in the pool was lost"
    records = stage.books.records()
    assert len({r.request_id for r in records}) == len(records)
