"""An engine that asks for a key of its own gets it from us, and nobody else ever does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from quotas.snapshots.sealed import opened, seal
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import SECRET_KEY, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until

ENGINE_KEY = "sk-engine-0123456789abcdefghij"


@pytest.fixture(params=["vllm", "llamacpp"])
def guarded(request: pytest.FixtureRequest, make_gateway: Callable[..., Stage]) -> Stage:
    """Run a gateway before an engine that asks for a key."""
    script = Script(kind=request.param, api_key=ENGINE_KEY, slots=4)
    return make_gateway(script, kind=request.param, LOG_LEVEL="DEBUG")


def show_key(stage: Stage, key: str) -> None:
    """Enter a key for the engine, as the books publish it."""
    books = stage.books
    books.replicas = (replace(books.replicas[0], sealed_key=seal(SECRET_KEY, key)),)
    books.publish()


def test_the_key_reaches_the_engine_and_nobody_else(guarded: Stage) -> None:
    """
    Requests and probes show the engine its own key and not the client's; it is in no answer, not
    in Redis and not in the log.
    """
    show_key(guarded, ENGINE_KEY)
    secret = guarded.books.key()

    def numbers_are_read() -> bool:
        seen = guarded.gateway.live()["engines"][0]
        return seen["engine_running"] is not None and seen["note"] == ""

    wait_until(numbers_are_read, 10, "the probes show the key too")
    answers = [guarded.ask(secret, chat(stream=stream)) for stream in (False, True)]
    with guarded.client(secret) as client:
        answers += [client.get(path) for path in ("/v1/models", "/v1/key", "/v1/queue", "/metrics")]

    assert [answer.status_code for answer in answers[:2]] == [200, 200]
    for record in guarded.witness.records():
        assert [v for n, v in record.headers if n == "authorization"] == [f"Bearer {ENGINE_KEY}"]
    live = json.dumps(guarded.gateway.live())
    seen = [f"{answer.headers}{answer.text}" for answer in answers] + [live, guarded.gateway.log]
    store = guarded.books.redis
    seen += [repr(store.dump(name)) + repr(name) for name in store.scan_iter()]
    assert not [text for text in seen if ENGINE_KEY[8:] in text]


@pytest.mark.parametrize("key", ["", "sk-another"])
def test_a_refused_key_is_never_the_clients_fault(guarded: Stage, key: str) -> None:
    """
    Without its key, or with a wrong one, an engine's 401 is a 502 that says what is wrong, the
    status says it too, and the engine is left in peace. The right key mends it.
    """
    show_key(guarded, key)
    secret = guarded.books.key(in_flight=1)

    refused = [guarded.ask(secret) for _ in range(5)]

    assert {answer.status_code for answer in refused} == {502}
    assert {answer.json()["error"]["code"] for answer in refused} == {"engine_key_refused"}

    def state() -> tuple[str, bool]:
        engine = guarded.gateway.live()["engines"][0]
        return engine["state"], "asks for a key" in engine["note"]

    wait_until(lambda: state() == ("suspect", True), 10, "the status tells")
    show_key(guarded, ENGINE_KEY)
    wait_until(lambda: state() == ("up", False), 10, "it is mended")
    assert guarded.ask(secret).status_code == 200


def test_what_is_sealed_opens_with_its_own_secret_only() -> None:
    """Sealed twice it differs, it opens under the same SECRET_KEY, and under no other."""
    sealed = seal(SECRET_KEY, ENGINE_KEY)

    assert sealed != seal(SECRET_KEY, ENGINE_KEY)
    assert ENGINE_KEY not in sealed
    assert opened(SECRET_KEY, sealed) == ENGINE_KEY
    assert opened(SECRET_KEY + "x", sealed) == opened(SECRET_KEY, sealed[:-3]) == ""
    assert seal(SECRET_KEY, "") == opened(SECRET_KEY, "") == ""
