"""A request can be ended by its owner: out of the queue or off the engine, at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from quotas.snapshots.credentials import Credential, sign
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import SECRET_KEY, chat
from tests.gateway.wire.test_leaving import connect, outcomes, read_until
from tests.rig.waiting import wait_until


def stop(stage: Stage, request_id: str, user_id: str | None, scope: str = "live") -> int:
    """Ask the gateway to end a request; return the status of its answer."""
    credential = sign(SECRET_KEY, Credential(scope, "", time.time() + 60))
    return httpx.post(
        f"{stage.gateway.url}/internal/stop",
        headers={"authorization": f"Bearer {credential}"},
        json={"request_id": request_id, "user_id": user_id},
        timeout=10,
    ).status_code


def the_one(stage: Stage, state: str) -> str:
    """Wait until one request is in this state and return its id."""
    wait_until(lambda: len(stage.gateway.live()[state]) == 1, 5, f"one is {state}")
    found: str = stage.gateway.live()[state][0]["ticket_id"]
    return found


def test_the_owner_ends_what_runs_and_what_waits(stage: Stage) -> None:
    """A stopped stream says so as its last event, a waiting request gets 409 and never runs."""
    secret = stage.books.key("ann", in_flight=1, queued=2)
    stage.witness.tell(tokens=500, decode_tps=20)
    stream = connect(stage, secret, chat("[mark:stop-run/1] x", stream=True, max_tokens=400))
    read_until(stream, b"w1 ")

    with stream, ThreadPoolExecutor() as pool:
        running = the_one(stage, "running")
        waiting = pool.submit(stage.ask, secret, chat("[mark:stop-wait/1] x"))
        queued = the_one(stage, "queued")
        assert stop(stage, queued, "u-ann") == 202
        refused = waiting.result(5)
        assert stop(stage, running, "u-ann") == 202
        assert b'"code":"stopped"' in read_until(stream, b'"code"')

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "stopped")
    assert refused.headers["x-should-retry"] == "false"
    wait_until(lambda: stage.witness.counters()["running"] == 0, 2, "the engine has stopped")
    assert outcomes(stage, "stop-wait/") == []
    ended = stage.books.record_of(running)
    assert (ended.outcome, ended.error_code) == ("aborted", "stopped")
    assert ended.completion_tokens >= 2
    unserved = stage.books.record_of(queued)
    assert (unserved.outcome, unserved.error_code) == ("evicted_client_gone", "stopped")


def test_nobody_ends_what_is_not_theirs(stage: Stage) -> None:
    """Another person's and an unknown request are 404 alike; an administrator needs no owner."""
    secret = stage.books.key("ben", in_flight=1)
    stage.witness.tell(tokens=500, decode_tps=20)
    stream = connect(stage, secret, chat("[mark:stop-own/1] x", stream=True, max_tokens=400))
    read_until(stream, b"w1 ")
    with stream:
        running = the_one(stage, "running")

        assert stop(stage, running, "u-ann") == 404
        assert stop(stage, running, "u-be") == 404
        assert stop(stage, "req_of_nobody", None) == 404
        assert stop(stage, running, "u-ben", scope="batch") == 403
        assert the_one(stage, "running") == running

        assert stop(stage, running, None) == 202
        read_until(stream, b'"code":"stopped"')
