"""Busy, broken and missing engines; time limits; what a client is told meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.gateway.wire.conftest import IMPATIENT, Stage, staged
from tests.gateway.wire.stage import bearer, chat
from tests.gateway.wire.test_leaving import connect
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

Make = Callable[..., Stage]


@pytest.fixture(scope="module")
def impatient_stage(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Run a gateway whose limits are a second or two."""
    limits = {"HOLD_S": "1", "COMMENT_EVERY_S": "1", "QUEUE_TTL_INTERACTIVE_S": "4",
              "IDLE_STREAM_S": "2"}  # fmt: skip
    folder = tmp_path_factory.mktemp("impatient")
    with staged(redis_server, folder, Script(slots=8), database=IMPATIENT, **limits) as stage:
        yield stage


@pytest.fixture
def impatient(impatient_stage: Stage) -> Iterator[Stage]:
    """Return it; afterwards nothing runs."""
    yield impatient_stage
    impatient_stage.witness.reset()
    impatient_stage.gateway.wait_settled(8)


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


def test_waiting_streams_are_kept_alive(impatient: Stage) -> None:
    """After the hold a queued stream gets headers and comments; the answer follows in them."""
    impatient.witness.tell(decode_tps=12, tokens=32)
    secret = impatient.books.key(in_flight=1)
    thread = threading.Thread(target=impatient.ask, args=(secret, chat(max_tokens=32)))
    thread.start()
    wait_until(lambda: bool(impatient.gateway.live()["running"]), 5, "one is running")

    began = time.monotonic()
    with impatient.client(secret) as client:
        body = chat(stream=True, max_tokens=2)
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            headers_s = time.monotonic() - began
            lines = list(answer.iter_lines())
    thread.join()

    assert 0.9 < headers_s < 2.5
    assert answer.headers["x-fairway-position"] == "1"
    comments = [line for line in lines if line.startswith(":")]
    assert "place 1" in comments[0]
    assert "data: [DONE]" in lines


def test_plain_answers_can_be_kept_alive_too(make_gateway: Make) -> None:
    """Where it is switched on, a waiting plain request gets white space before its JSON."""
    stage = make_gateway(
        Script(slots=1, decode_tps=10, tokens=25),
        HOLD_S="1", COMMENT_EVERY_S="1", KEEPALIVE_PLAIN="1",
    )  # fmt: skip
    secret = stage.books.key(in_flight=1)
    blocker = connect(stage, secret, chat(stream=True, max_tokens=25))
    wait_until(lambda: bool(stage.gateway.live()["running"]), 5, "one is running")

    answer = stage.ask(secret, max_tokens=2)
    blocker.close()

    assert answer.content.startswith(b"\n")
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert stage.books.record_of(answer.headers["x-request-id"]).outcome == "served"


def test_the_queues_end_is_told_in_the_shape_that_still_fits(impatient: Stage) -> None:
    """Plain: 429 with Retry-After and one evicted row. A stream with headers: one error event."""
    impatient.witness.tell(decode_tps=4, tokens=100)
    secret = impatient.books.key(in_flight=1)
    blocker = connect(impatient, secret, chat(stream=True, max_tokens=100))
    wait_until(lambda: bool(impatient.gateway.live()["running"]), 5, "one is running")
    found: list[httpx.Response] = []

    def ask(stream: bool) -> None:
        found.append(impatient.ask(secret, text="[mark:late/1] x", stream=stream))

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blocker.close()

    plain, stream = sorted(found, key=lambda answer: -answer.status_code)
    assert (plain.status_code, plain.json()["error"]["code"]) == (429, "queue_timeout")
    assert int(plain.headers["retry-after"]) >= 1
    record = impatient.books.record_of(plain.headers["x-request-id"])
    assert (record.outcome, record.status) == ("evicted_timed_out", 429)
    assert stream.status_code == 200
    event = json.loads(stream.text.rstrip().splitlines()[-1].removeprefix("data: "))
    assert event["error"]["code"] == "queue_timeout"
    assert event["error"]["retry_after_s"] >= 1
    assert impatient.witness.records("late") == []


def test_an_engine_that_goes_silent_is_given_up(impatient: Stage) -> None:
    """Pings are not life: a stream without content for the limit ends, and its slot is free."""
    impatient.witness.tell(hang_after=3, ping_s=0.3)
    secret = impatient.books.key(in_flight=1)

    answer = impatient.ask(secret, stream=True)

    assert '"code":"engine_silent"' in answer.text
    impatient.gateway.wait_settled(2)
    assert impatient.witness.idle()
    record = impatient.books.record_of(answer.headers["x-request-id"])
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
