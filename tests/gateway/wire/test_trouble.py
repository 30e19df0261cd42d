"""Busy, broken and missing engines; time limits; what a client is told meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import httpx

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import bearer, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

Make = Callable[..., Stage]


def second_engine(stage: Stage, script: Script) -> Witness:
    """Add another replica of the same model."""
    engine = Witness(stage.witness.folder / "second", script).start()
    stage.books.engine(engine.url, slots=script.slots)
    stage.gateway.wait_up(2)
    return engine


def test_busy_is_not_broken(stage: Stage) -> None:
    """An engine that says 503 twice gets the request again; the client sees one good answer."""
    secret = stage.books.key()
    stage.witness.tell(fail_status=503, fail_first=2)

    answer = stage.ask(secret, text="[mark:busy/1] x")

    assert answer.status_code == 200
    assert len(stage.witness.records("busy")) == 3
    assert stage.books.record_of(answer.headers["x-request-id"]).outcome == "served"


def test_one_engine_that_fails_is_tried_once(stage: Stage) -> None:
    """A 500 with nobody else to ask is told to the client; the request is not sent again."""
    secret = stage.books.key()
    stage.witness.tell(fail_status=500)

    answer = stage.ask(secret, text="[mark:fails/1] x")

    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "engine_failed"
    assert len(stage.witness.records("fails")) == 1
    record = stage.books.record_of(answer.headers["x-request-id"])
    assert (record.outcome, record.status) == ("failed", 502)


def test_a_failure_before_the_first_byte_moves_to_the_other_replica(make_gateway: Make) -> None:
    """A replica that breaks off early costs the client nothing: the other one answers."""
    stage = make_gateway(Script(slots=4, fail_status=500))
    secret = stage.books.key()
    other = second_engine(stage, Script(slots=4))
    try:
        for number in range(6):
            answer = stage.ask(secret, text=f"[mark:move{number}/1] {number}", stream=True)
            assert answer.status_code == 200
            assert '"error"' not in answer.text
        assert len(other.records()) == 6
    finally:
        other.stop()


def test_a_killed_replica_loses_nobody(make_gateway: Make) -> None:
    """Requests go to the replica that lives; the dead one costs at most one try each."""
    stage = make_gateway(Script(slots=4))
    secret = stage.books.key(in_flight=4)
    other = second_engine(stage, Script(slots=4))
    try:
        stage.witness.kill()
        for number in range(10):
            assert stage.ask(secret, text=f"after {number}").status_code == 200
        assert len(other.records()) == 10
    finally:
        other.stop()


def test_waiting_streams_are_kept_alive(make_gateway: Make) -> None:
    """After the hold a queued stream gets headers and comments; the answer follows in them."""
    stage = make_gateway(Script(slots=1, decode_tps=10, tokens=40), HOLD_S="1", COMMENT_EVERY_S="1")
    secret = stage.books.key(in_flight=1)
    thread = threading.Thread(target=stage.ask, args=(secret, chat(max_tokens=40)))
    thread.start()
    wait_until(lambda: bool(stage.gateway.live()["running"]), 5, "one is running")

    began = time.monotonic()
    lines = []
    with (
        stage.client(secret) as client,
        client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=2)
        ) as answer,
    ):
        headers_s = time.monotonic() - began
        lines = list(answer.iter_lines())
    thread.join()

    assert 0.9 < headers_s < 2.5
    assert answer.headers["x-fairway-position"] == "1"
    comments = [line for line in lines if line.startswith(":")]
    assert len(comments) >= 2
    assert "place 1" in comments[0]
    assert "data: [DONE]" in lines


def test_a_failure_after_the_head_is_one_event(make_gateway: Make) -> None:
    """Once a stream has its headers, the queue's end is told as an error event."""
    stage = make_gateway(
        Script(slots=1, hang_after=1), HOLD_S="1", QUEUE_TTL_INTERACTIVE_S="2", IDLE_STREAM_S="60"
    )
    secret = stage.books.key(in_flight=1)
    blocker = stage.client(secret)
    with blocker.stream("POST", "/v1/chat/completions", json=chat(stream=True)):
        answer = stage.ask(secret, stream=True)
    blocker.close()

    assert answer.status_code == 200
    event = json.loads(answer.text.rstrip().splitlines()[-1].removeprefix("data: "))
    assert event["error"]["code"] == "queue_timeout"
    assert event["error"]["retry_after_s"] >= 1


def test_a_plain_request_that_waits_too_long_is_told_when_to_return(make_gateway: Make) -> None:
    """429 queue_timeout with Retry-After, one evicted record, and nothing at the engine."""
    stage = make_gateway(Script(slots=1, hang_after=1), QUEUE_TTL_INTERACTIVE_S="1")
    secret = stage.books.key(in_flight=1)
    blocker = stage.client(secret)
    with blocker.stream("POST", "/v1/chat/completions", json=chat(stream=True)):
        answer = stage.ask(secret, text="[mark:late/1] x")
    blocker.close()

    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "queue_timeout"
    assert int(answer.headers["retry-after"]) >= 1
    record = stage.books.record_of(answer.headers["x-request-id"])
    assert (record.outcome, record.status) == ("evicted_timed_out", 429)
    assert stage.witness.records("late") == []


def test_an_engine_that_goes_silent_is_given_up(make_gateway: Make) -> None:
    """Pings are not life: a stream without content for the limit ends, and its slot is free."""
    stage = make_gateway(Script(slots=1, hang_after=3, ping_s=0.3), IDLE_STREAM_S="2")
    secret = stage.books.key(in_flight=1)

    answer = stage.ask(secret, stream=True)

    assert '"code":"engine_silent"' in answer.text
    stage.gateway.wait_settled(2)
    assert stage.witness.idle()
    record = stage.books.record_of(answer.headers["x-request-id"])
    assert (record.outcome, record.error_code) == ("failed", "engine_silent")


def test_without_an_engine_requests_wait_and_are_sent_away(make_gateway: Make) -> None:
    """No replica up: queued, then 503 no_replica with Retry-After; and served if one returns."""
    stage = make_gateway(Script(slots=1), QUEUE_TTL_INTERACTIVE_S="20")
    secret = stage.books.key()
    stage.witness.kill()
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(stage.ask(secret)))
    thread.start()
    time.sleep(1)
    stage.witness.start()
    thread.join()

    assert found[0].status_code == 200


def test_a_client_that_would_not_wait_is_told_at_once(make_gateway: Make) -> None:
    """A plain request whose expected wait exceeds its own timeout is refused early."""
    stage = make_gateway(Script(slots=1, decode_tps=2, tokens=200))
    secret = stage.books.key(in_flight=1, queued=8)
    other = stage.books.key("bob", in_flight=1, queued=8)
    url = f"{stage.gateway.url}/v1/chat/completions"
    with (
        httpx.Client(timeout=60) as long,
        httpx.Client(timeout=60) as short,
        long.stream("POST", url, headers=bearer(secret), json=chat(stream=True, max_tokens=150)),
    ):
        began = time.monotonic()
        headers = {**bearer(other), "x-stainless-read-timeout": "3"}
        answer = short.post(url, headers=headers, json=chat(max_tokens=50))
        waited_s = time.monotonic() - began

    assert answer.status_code == 429
    if answer.json()["error"]["code"] == "wait_exceeds_timeout":
        assert waited_s < 1
        assert "/v1/batches" in answer.json()["error"]["message"]
    else:
        assert waited_s < 3  # the wait was unknown: it left in time for the client to hear
