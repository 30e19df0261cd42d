"""What changes in the books bites here at once; what Redis loses hurts nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

from quotas.snapshots.directory import DIRECTORY
from quotas.snapshots.keyformat import generate
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import bearer, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until

Make = Callable[..., Stage]


def refused_with(stage: Stage, secret: str) -> str:
    """Return the code of a refusal, "" when the key opens."""
    answer = httpx.get(f"{stage.gateway.url}/v1/key", headers=bearer(secret))
    return "" if answer.status_code == 200 else str(answer.json()["error"]["code"])


def test_a_revoked_key_is_refused_within_five_seconds_without_hints(stage: Stage) -> None:
    """With the hint lost the poll alone finds a revocation, also on a key in constant use."""
    secret = stage.books.key()
    assert refused_with(stage, secret) == ""
    stage.books.redis.publish = lambda *_: None  # type: ignore[method-assign]
    stage.books.change(secret, state="revoked")
    began = time.monotonic()

    wait_until(lambda: refused_with(stage, secret) == "key_revoked", 5, "refused", every_s=0.02)

    assert time.monotonic() - began < 3


def test_every_kind_of_dead_key_is_refused(stage: Stage) -> None:
    """Disabled, owner disabled, revoked and expired keys are 401 with their own code."""
    cases = {
        "key_disabled": {"state": "disabled"},
        "key_revoked": {"state": "revoked"},
        "key_expired": {"expires_at": time.time() - 1},
    }
    for code, changes in cases.items():
        secret = stage.books.key()
        stage.books.change(secret, **changes)
        wait_until(lambda s=secret, c=code: refused_with(stage, s) == c, 5, code)


def test_a_key_expires_to_the_second(stage: Stage) -> None:
    """The end of a key needs no publication to bite."""
    secret = stage.books.key(expires_at=time.time() + 1.0)

    assert refused_with(stage, secret) == ""
    time.sleep(1.1)
    assert refused_with(stage, secret) == "key_expired"


def test_a_new_key_works_at_once(stage: Stage) -> None:
    """A key that was asked for too early is not remembered as unknown after it was issued."""
    secret = stage.books.key("early")
    digests, stage.books.keys = stage.books.keys, {}
    stage.books.publish()
    wait_until(lambda: refused_with(stage, secret) == "invalid_api_key", 3, "unknown")
    stage.books.keys = digests
    stage.books.publish()

    wait_until(lambda: refused_with(stage, secret) == "", 2, "known", every_s=0.05)


def test_a_queued_request_of_a_revoked_key_leaves(stage: Stage) -> None:
    """Revoking a key puts its waiting requests out of the queue; the running one may finish."""
    secret = stage.books.key(in_flight=1)
    stage.witness.tell(decode_tps=10, tokens=60)
    found: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: found.append(stage.ask(secret, chat(max_tokens=40))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: bool(stage.gateway.live()["queued"]), 5, "one waits")
    stage.books.change(secret, state="revoked")
    for thread in threads:
        thread.join()

    assert sorted(answer.status_code for answer in found) == [200, 401]
    assert "evicted_revoked" in {r.outcome for r in stage.books.records()}


def test_losing_redis_is_never_a_401_and_loses_no_record(make_gateway: Make) -> None:
    """FLUSHALL while keys are in use: good keys get 200 or 503 with Retry-After, then 200 again.

    Usage records that were not yet in the books are appended again.
    """
    stage = make_gateway(Script(slots=4))
    secret, unseen = stage.books.key(), stage.books.key("bob")
    ids = {stage.ask(secret).headers["x-request-id"] for _ in range(3)}
    wait_until(lambda: len(stage.books.records()) == 3, 3, "three records")
    stage.books.redis.flushdb()
    began = time.monotonic()
    seen = set()
    while time.monotonic() - began < 6.5:
        for one in (secret, unseen):
            answer = httpx.get(f"{stage.gateway.url}/v1/key", headers=bearer(one))
            seen.add(answer.status_code)
            if answer.status_code == 503:
                assert answer.json()["error"]["code"] == "directory_unavailable"
                assert int(answer.headers["retry-after"]) >= 1
        time.sleep(0.1)
    assert seen == {200, 503}
    assert httpx.get(f"{stage.gateway.url}/readyz").status_code == 503

    stage.books.generation = "two"
    stage.books.publish()

    wait_until(lambda: refused_with(stage, secret) == "", 3, "known again")
    assert {r.request_id for r in stage.books.records()} == ids  # appended again


def test_what_redis_has_forgotten_is_waited_for(stage: Stage) -> None:
    """Keys nobody has seen yet pass once the books have published anew, without a refusal."""
    unseen = stage.books.key("bob")
    stage.books.redis.hdel(DIRECTORY, "generation")
    time.sleep(0.2)
    anew = threading.Timer(0.5, stage.books.publish)
    anew.start()
    began = time.monotonic()

    assert refused_with(stage, unseen) == ""
    assert time.monotonic() - began > 0.3
    anew.join()


def test_half_a_publication_is_not_believed(stage: Stage) -> None:
    """Without a generation no key is judged, whatever else is there."""
    stage.books.redis.hdel(DIRECTORY, "generation")
    time.sleep(0.2)

    assert refused_with(stage, generate("interactive")) == "directory_unavailable"
    stage.books.publish()
