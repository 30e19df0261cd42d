"""A replica that works far below its measured speed, with real processes and in real time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from quotas.snapshots.measured import MEASURED, Measured
from tests.gateway.wire.stage import Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
RATE, SLOTS = 50.0, 4  # tokens per second of one request, as measured
SLOWER = 20


@dataclass
class Crowd:
    """People who ask one model again and again, more of them than it has slots."""

    gateway: GatewayProcess
    secret: str
    model: str

    def __post_init__(self) -> None:
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(SLOTS + 2)]
        for thread in self.threads:
            thread.start()

    def _ask(self) -> None:
        address = f"{self.gateway.url}/v1/chat/completions"
        with suppress(httpx.HTTPError):  # at the end the gateway goes first
            while not self.over.is_set():
                httpx.post(
                    address, json=chat(model=self.model), headers=bearer(self.secret), timeout=300
                )


@pytest.fixture
def gateway(redis_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """Return a gateway before two engines measured alike, of which one has become slow."""
    store = redis.Redis.from_url(redis_url)
    books = Books(store)
    witnesses = []
    for number, (model, rate) in enumerate((("slow", RATE / SLOWER), ("busy", RATE)), 1):
        script = Script(kind="llamacpp", model=model, slots=SLOTS, tokens=100, decode_tps=rate)
        witnesses.append(Witness(tmp_path / model, script).start())
        books.engine(witnesses[-1].url, pool=model, kind="llamacpp", slots=SLOTS)
        decode = ((1, RATE), (SLOTS, SLOTS * RATE))
        store.hset(MEASURED, f"r{number}", Measured("run_1", {}, 5_000.0, decode).to_json())
    process = GatewayProcess(tmp_path, redis_url).start()
    process.wait_up(2)
    secret = books.key(in_flight=20, queued=20, person={"in_flight": 20})
    crowds = [Crowd(process, secret, model) for model in ("slow", "busy")]
    yield process
    for crowd in crowds:
        crowd.over.set()
    process.stop()
    for witness in witnesses:
        witness.stop()


def notes(gateway: GatewayProcess) -> dict[str, str]:
    """Return what people are told of each engine, by its model."""
    found: dict[str, Any] = {engine["pool"]: engine for engine in gateway.live()["engines"]}
    return {pool: engine["note"] for pool, engine in found.items()}


def test_a_replica_that_became_twenty_times_slower_is_flagged_within_two_minutes(
    gateway: GatewayProcess,
) -> None:
    """
    After at most two minutes of traffic the page says at what part of its speed the engine works
    and what that usually means; one that is as full but as fast as measured is never flagged.
    """
    began = time.monotonic()
    wait_until(lambda: "measured speed" in notes(gateway)["slow"], 120, "it is flagged", 1.0)
    seen = notes(gateway)

    assert "5% of its measured speed: are its layers on the GPU (-ngl)?" in seen["slow"]
    while time.monotonic() < began + 120:
        assert "measured speed" not in notes(gateway)["busy"]
        time.sleep(2)
