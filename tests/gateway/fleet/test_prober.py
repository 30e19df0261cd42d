"""The prober against real engines: llama.cpp itself, and the witness engine for the faults."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from gateway.core.types import Holding
from gateway.fleet import pace
from gateway.fleet import replica as replica_module
from gateway.fleet.prober import Fleet
from gateway.ledger.interface import Ledger
from gateway.measure.fingerprint import fingerprint
from quotas.snapshots.addresses import allowed_hosts
from quotas.snapshots.directory import Fleet as FleetSnapshot
from quotas.snapshots.directory import PoolSnapshot, ReplicaSnapshot
from quotas.snapshots.live import EngineLive
from quotas.snapshots.measured import Measured
from tests.gateway.fleet.conftest import LlamaServer
from tests.rig.witness import Witness

FAST_S = 0.1


class HeardLedger:
    """A ledger's ear: it keeps the last thing it was told of each replica."""

    def __init__(self) -> None:
        self.heard: dict[str, dict[str, Any]] = {}
        self.running: tuple[Holding, ...] = ()

    async def glance(self) -> Any:
        return SimpleNamespace(running=self.running)

    def observe_replica(self, replica_id: str, **seen: Any) -> None:
        self.heard[replica_id] = seen

    def accepts(self, replica_id: str = "r1") -> bool:
        return bool(self.heard.get(replica_id, {}).get("accepts"))


def snapshot(url: str, **changes: Any) -> ReplicaSnapshot:
    """Return a replica as the books publish it."""
    plain = ReplicaSnapshot("r1", "one", "tiny", url, "vllm", 8, 8192, False, "active")
    return dataclasses.replace(plain, **changes)


def books(*replicas: ReplicaSnapshot) -> FleetSnapshot:
    """Return a fleet of these replicas."""
    return FleetSnapshot(version=1, pools=(PoolSnapshot("tiny"),), replicas=replicas)


@asynccontextmanager
async def watching(*replicas: ReplicaSnapshot, **options: Any) -> AsyncIterator[Any]:
    """Watch these replicas, quickly; gives the fleet and what the ledger heard."""
    ledger = HeardLedger()
    fleet = Fleet(cast(Ledger, ledger), **{"interval_s": FAST_S, **options})
    await fleet.start()
    fleet.follow(books(*replicas))
    try:
        yield fleet, ledger
    finally:
        await fleet.close()


async def until(true: Callable[[], Any], timeout_s: float = 8.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.02)


def only(fleet: Fleet) -> EngineLive:
    """Return the record of the only engine."""
    (engine,) = fleet.engines()
    return engine


async def test_a_real_llamacpp_is_found_with_its_slots_and_counters(llama: LlamaServer) -> None:
    """
    A real llama.cpp is up within a probe; its slots cap ours, and its counters make rates.
    """
    async with watching(snapshot(llama.url, kind="llamacpp")) as (fleet, ledger):
        await until(lambda: ledger.heard.get("r1", {}).get("slots") == 4)
        assert ledger.accepts()
        assert ledger.heard["r1"]["incarnation"]
        before = only(fleet).completion_tokens_total or 0

        await asyncio.to_thread(llama.complete, "one two three", 50)
        await until(lambda: (only(fleet).completion_tokens_total or 0) >= before + 50)

        engine = only(fleet)
        assert (engine.state, engine.note) == ("up", "")
        assert engine.tokens_out_per_s
        assert engine.tokens_out_per_s > 0
        assert (engine.engine_running, engine.engine_waiting) == (0, 0)


async def test_other_settings_than_those_measured_are_named(llama: LlamaServer) -> None:
    """
    A setting that differs from the measured fingerprint is named; the same settings are not.
    """
    async with watching(snapshot(llama.url, kind="llamacpp")) as (fleet, ledger):
        await until(lambda: ledger.heard.get("r1", {}).get("slots") == 4)
        same = fingerprint(fleet.replica("r1").facts, slots=4, card="A", sharing_mode="shared")
        fleet.know_measured({"r1": Measured("run", same, 1.0, ((1, 1.0),))})
        assert only(fleet).settings_changed == ()

        other = {**same, "setting.n_ctx": "4096"}
        fleet.know_measured({"r1": Measured("run", other, 1.0, ((1, 1.0),))})
        assert only(fleet).settings_changed == ("setting.n_ctx",)


async def test_a_restarted_llamacpp_is_a_new_incarnation_with_its_new_slots(
    tmp_path: Path,
) -> None:
    """
    After a restart slots are read anew, rates are never negative, the incarnation is another.
    """
    server = LlamaServer(tmp_path, slots=4)
    server.start()
    try:
        async with watching(snapshot(server.url, kind="llamacpp")) as (fleet, ledger):
            await until(lambda: ledger.heard.get("r1", {}).get("slots") == 4)
            first = ledger.heard["r1"]["incarnation"]
            await asyncio.to_thread(server.complete, "count", 20)
            server.stop()
            await until(lambda: not ledger.accepts())

            server.slots = 2
            await asyncio.sleep(1)  # llama.cpp tells its start in whole seconds
            await asyncio.to_thread(server.start)
            await until(lambda: ledger.accepts() and ledger.heard["r1"]["slots"] == 2)

            assert ledger.heard["r1"]["incarnation"] != first
            rate = only(fleet).tokens_out_per_s
            assert rate is None or rate >= 0
    finally:
        server.stop()


async def test_a_dead_engine_is_down_and_comes_back(witness: Witness) -> None:
    """
    An engine that is killed takes no work after three probes and is back after two.
    """
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(ledger.accepts)
        witness.kill()
        await until(lambda: not ledger.accepts())
        assert only(fleet).state == "down"

        witness.start()
        await until(ledger.accepts)
        assert only(fleet).state == "up"


async def test_a_stopped_engine_delays_no_other_probe(witness: Witness, llama: LlamaServer) -> None:
    """
    An engine that hangs is found out by its own task; the other's numbers stay fresh.
    """
    other = snapshot(llama.url, replica_id="r2", name="two", kind="llamacpp")
    async with watching(snapshot(witness.url), other) as (fleet, ledger):
        await until(lambda: ledger.accepts("r1") and ledger.accepts("r2"))
        witness.kill(signal.SIGSTOP)
        try:
            await asyncio.sleep(1)
            replica = fleet.replica("r2")
            assert replica.read_s is not None
            assert asyncio.get_running_loop().time() - replica.read_s < 0.9
        finally:
            witness.kill(signal.SIGCONT)


async def test_loading_takes_no_work(witness: Witness) -> None:
    """
    A replica that loads its model is shown as loading and gets nothing.
    """
    witness.tell(health="loading")
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(lambda: only(fleet).state == "loading")
        assert not ledger.accepts()
        witness.tell(health="ok")
        await until(ledger.accepts)


@pytest.mark.parametrize("metrics", ["html", "huge", "empty", "nan", "missing"])
async def test_a_broken_metrics_page_is_unknown_and_work_goes_on(
    witness: Witness, metrics: str
) -> None:
    """
    Without numbers a replica still takes work; what is shown of it is unknown, never 0.
    """
    witness.tell(metrics=metrics)
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(ledger.accepts)
        await asyncio.sleep(3 * FAST_S)
        engine = only(fleet)

        assert ledger.accepts()
        assert engine.state == "up"
        assert (engine.engine_running, engine.engine_waiting, engine.kv_usage) == (None,) * 3
        assert engine.completion_tokens_total is None


async def test_silent_metrics_beside_good_health_are_busy_not_down(witness: Witness) -> None:
    """
    A long prefill keeps /metrics from answering; the replica is busy and keeps its work.
    """
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(lambda: only(fleet).engine_running == 0)
        witness.tell(metrics="hang")
        await until(lambda: only(fleet).state == "busy", 8)

        assert ledger.accepts()
        assert "busy" in only(fleet).note


async def test_busy_answers_back_off_for_a_moment_only(witness: Witness) -> None:
    """
    After a 503 a replica gets nothing for a moment, which ends between two probes; no number of
    them opens its breaker.
    """
    async with watching(snapshot(witness.url), interval_s=60.0) as (fleet, ledger):
        await until(ledger.accepts)
        for _ in range(20):
            fleet.activity("r1").answered(503)
        fleet.noticed("r1")
        assert not ledger.accepts()
        await until(ledger.accepts, 3)


async def test_five_resets_open_the_breaker_and_good_probes_close_it(witness: Witness) -> None:
    """
    Five failed connects in a row stop new work at once; two good probes bring it back.
    """
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(ledger.accepts)
        for _ in range(5):
            fleet.activity("r1").unreachable()
        fleet.noticed("r1")
        assert not ledger.accepts()
        assert only(fleet).state == "suspect"
        await until(ledger.accepts, 3)


async def test_a_wedged_engine_with_good_health_is_suspect(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Work, no content and no counter moving: no new work although /health says 200; content heals.
    """
    monkeypatch.setattr(replica_module, "STALL_S", 1.0)
    loop = asyncio.get_running_loop()
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(ledger.accepts)
        fleet.activity("r1").began("t", loop.time())
        await until(lambda: not ledger.accepts(), 5)
        assert only(fleet).state == "suspect"
        assert "no progress" in only(fleet).note

        fleet.activity("r1").moved(loop.time())
        await until(ledger.accepts, 3)


async def test_a_long_prefill_is_not_taken_for_a_wedge(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While a prompt is read that takes long by our own estimate, silence is expected.
    """
    monkeypatch.setattr(replica_module, "STALL_S", 0.2)
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(ledger.accepts)
        fleet.activity("r1").began("t", asyncio.get_running_loop().time(), prefill_s=60)
        await asyncio.sleep(1)
        assert ledger.accepts()


async def test_the_fleet_follows_the_books_without_a_restart(witness: Witness) -> None:
    """
    Added, drained and removed replicas are taken over at once.
    """
    async with watching() as (fleet, ledger):
        fleet.follow(books(snapshot(witness.url)))
        await until(ledger.accepts)

        fleet.follow(books(snapshot(witness.url, state="draining")))
        assert not ledger.accepts()
        assert only(fleet).state == "draining"

        fleet.follow(books(snapshot(witness.url, slots=3)))
        assert ledger.accepts()
        assert ledger.heard["r1"]["slots"] == 3

        fleet.follow(books())
        assert not ledger.accepts()
        assert fleet.engines() == ()
        fleet.activity("r1").ended("t")  # a request that outlives its replica harms nothing


async def test_an_address_outside_engine_hosts_is_never_asked(witness: Witness) -> None:
    """
    A name is looked up and judged before each probe; what ENGINE_HOSTS excludes stays down.
    """
    nowhere = allowed_hosts(["10.9.9.0/24"])
    async with watching(snapshot(witness.url), allowed=nowhere) as (fleet, ledger):
        await until(lambda: only(fleet).note != "")
        assert not ledger.accepts()
        assert only(fleet).state == "down"
        assert "ENGINE_HOSTS" in only(fleet).note


@pytest.mark.parametrize(("tokens_per_s", "slow"), [(40.0, False), (2.0, True)])
async def test_a_replica_twenty_times_slower_than_measured_is_flagged(
    witness: Witness, monkeypatch: pytest.MonkeyPatch, tokens_per_s: float, slow: bool
) -> None:
    """
    Under the same two streams, one engine works at its measured speed and one at a twentieth.
    """
    monkeypatch.setattr(pace, "WINDOW_S", 7.0)
    monkeypatch.setattr(pace, "MARGIN_S", 1.0)
    witness.tell(decode_tps=tokens_per_s, tokens=100_000, slots=8)
    async with watching(snapshot(witness.url)) as (fleet, ledger):
        await until(ledger.accepts)
        fleet.know_measured({"r1": Measured("run", {}, 1000.0, ((1, 40.0), (2, 80.0)))})
        async with httpx.AsyncClient() as http:
            body = {"prompt": "go on", "max_tokens": 100_000, "stream": True}
            streams = [
                asyncio.create_task(
                    http.post(f"{witness.url}/v1/completions", json=body, timeout=60)
                )
                for _ in range(2)
            ]
            replica = fleet.replica("r1")
            await until(lambda: replica.pace.share is not None, 15)
            await asyncio.sleep(1)
            assert replica.pace.is_slow is slow
            assert ("measured speed" in only(fleet).note) is slow
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
