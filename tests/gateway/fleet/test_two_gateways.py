"""Two gateway processes on one ledger in Redis see the same fleet, verdict and holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import httpx
import pytest
import redis

from gateway.fleet.watcher import LOOKER
from quotas.snapshots.credentials import Credential, sign
from tests.gateway.wire.stage import SECRET_KEY, Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

SLOW = {"slow": {"first_delay_s": 6.0}}


@pytest.fixture
def pair(redis_url: str, tmp_path: Path) -> Iterator[tuple[GatewayProcess, GatewayProcess, str]]:
    """Return two gateways in front of one engine, and a key."""
    witness = Witness(tmp_path, Script(slots=4, rules=SLOW)).start()
    books = Books(redis.Redis.from_url(redis_url))
    books.engine(witness.url)
    secret = books.key()
    gateways = [
        GatewayProcess(tmp_path, redis_url, {"LEDGER": "redis", "GATEWAY_NAME": name}).start()
        for name in ("one", "two")
    ]
    for gateway in gateways:
        gateway.wait_up()
    yield gateways[0], gateways[1], secret
    for gateway in gateways:
        gateway.stop()
    witness.stop()


def ask(gateway: GatewayProcess, secret: str, text: str = "hello") -> httpx.Response:
    """Send one chat message."""
    address = f"{gateway.url}/v1/chat/completions"
    return httpx.post(address, json=chat(text), headers=bearer(secret), timeout=20)


def hold(gateway: GatewayProcess, method: str) -> httpx.Response:
    """Take or give back the engine."""
    credential = sign(SECRET_KEY, Credential("live", "", time.time() + 60))
    body = {"replica_id": "r1", "run": "run_1", "seconds": 60, "why": "measured"}
    headers = {"Authorization": f"Bearer {credential}"}
    return httpx.request(method, f"{gateway.url}/internal/hold", json=body, headers=headers)


def state(gateway: GatewayProcess) -> str:
    """Return the engine's state as this gateway shows it."""
    return str(gateway.live()["engines"][0]["state"])


def verdict(gateway: GatewayProcess) -> str:
    """Return the interactive word this gateway shows."""
    found = [v for v in gateway.live()["verdicts"] if v["service_class"] == "interactive"]
    return str(found[0]["word"]) if found else "none"


def test_both_show_one_verdict_and_one_takes_over_the_look(
    pair: tuple[GatewayProcess, GatewayProcess, str], redis_url: str
) -> None:
    """
    Whichever process is asked, the verdict is there; when the one that looks dies, the other does.
    """
    one, two, secret = pair
    assert ask(one, secret).status_code == 200
    wait_until(lambda: verdict(one) == verdict(two) == "ok", 10, "both show the verdict")

    store = redis.Redis.from_url(redis_url)
    looking, other = (one, two) if store.get(LOOKER) == b"one" else (two, one)
    assert looking.process is not None
    looking.process.kill()
    name = b"two" if other is two else b"one"
    wait_until(lambda: store.get(LOOKER) == name, 10, "the other looks")
    wait_until(lambda: verdict(other) == "ok", 5, "the verdict is there still")


def test_a_hold_taken_at_one_binds_the_other(
    pair: tuple[GatewayProcess, GatewayProcess, str],
) -> None:
    """
    Arrivals at either gateway are told that the card is being measured, until it is given back.
    """
    one, two, secret = pair
    assert hold(one, "POST").json()["state"] == "measuring"
    wait_until(lambda: state(two) == "measuring", 3, "the other sees the hold")
    hold(one, "POST")  # as a run renews it
    refused = [ask(gateway, secret) for gateway in (one, two)]

    assert [answer.json()["error"]["code"] for answer in refused] == ["measuring"] * 2
    assert all(50 < int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert hold(two, "DELETE").status_code == 200
    wait_until(lambda: ask(one, secret).status_code == 200, 5, "the card is back")


def test_those_in_line_are_told_when_the_card_is_back(
    pair: tuple[GatewayProcess, GatewayProcess, str],
) -> None:
    """
    What runs when a measurement begins ends well; who waits is told at once instead of waiting.
    """
    one, two, secret = pair
    with ThreadPoolExecutor(6) as visitors:
        asked = [
            visitors.submit(ask, gateway, secret, f"[mark:slow/{n}]")
            for n in range(3)
            for gateway in (one, two)
        ]
        wait_until(lambda: len(one.live()["queued"]) == 4, 10, "two run and four wait")
        assert hold(one, "POST").json()["state"] == "measuring"
        told = as_completed(asked)
        refused = [next(told).result() for _ in range(4)]
        served = [answer.result() for answer in told]

    assert [answer.json()["error"]["code"] for answer in refused] == ["measuring"] * 4
    assert all(50 < int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert [answer.status_code for answer in served] == [200] * 2


def test_a_stranger_may_not_hold_the_card(pair: tuple[GatewayProcess, GatewayProcess, str]) -> None:
    """
    Without the portal's credential nobody takes the card; a key is not one.
    """
    one, _, secret = pair
    body = {"replica_id": "r1", "run": "x", "seconds": 60}
    for headers in ({}, bearer(secret)):
        answer = httpx.post(f"{one.url}/internal/hold", json=body, headers=headers)
        assert answer.status_code in (401, 403, 404)
    assert ask(one, secret).status_code == 200
