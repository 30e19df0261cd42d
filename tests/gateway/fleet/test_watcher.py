"""One process looks at the whole and all show what it saw; nothing old is shown as current."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest
import redis.asyncio as redis

from gateway.core.types import Blocker, Holding, LedgerView, ServiceClass, Standing
from gateway.engines.base import EngineReading
from gateway.fleet.prober import Fleet
from gateway.fleet.watcher import LOOKER, Watcher
from gateway.ledger.interface import Ledger
from quotas.snapshots.directory import Fleet as FleetSnapshot
from quotas.snapshots.directory import ReplicaSnapshot
from tests.gateway.fleet.test_prober import HeardLedger

CHAT, BATCH = ServiceClass.INTERACTIVE, ServiceClass.BATCH


class ShownLedger(HeardLedger):
    """A ledger that shows what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = LedgerView(0, True, (), (), {}, {})

    async def view(self) -> LedgerView:
        return self.shown

    async def glance(self) -> LedgerView:
        return self.shown

    def show(self, *tickets: Standing | Holding) -> None:
        queued = tuple(t for t in tickets if isinstance(t, Standing))
        running = tuple(t for t in tickets if isinstance(t, Holding))
        self.shown = dataclasses.replace(self.shown, queued=queued, running=running)


def waits(ticket: str, blocker: Blocker = Blocker.SLOTS, queued_s: float = 0.0) -> Standing:
    """Return a waiting chat message."""
    ms = round(1000 * queued_s)
    return Standing(ticket, "k", "u", CHAT, "m", 1, ms, 0, 0, None, blocker, None)


def runs(ticket: str, weight: int = 1) -> Holding:
    """Return a running chat message."""
    return Holding(ticket, "k", "u", CHAT, "m", "r", weight, 0)


class Stage:
    """One or more watchers on one store, moved by a clock of the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now = 1_000_000.0
        self.ledger = ShownLedger()
        self.fleet = Fleet(cast(Ledger, self.ledger), wall=lambda: self.now)
        url_ = "http://127.0.0.1:9"
        self.fleet.follow(
            FleetSnapshot(
                1, replicas=(ReplicaSnapshot("r", "r", "m", url_, "vllm", 8, 1, False, "active"),)
            )
        )
        self.made: list[Watcher] = []

    def watcher(self, name: str) -> Watcher:
        """Return one more process's watcher."""
        made = Watcher(
            redis.Redis.from_url(self.url),
            cast(Ledger, self.ledger),
            self.fleet,
            name=name,
            wall=lambda: self.now,
        )
        self.made.append(made)
        return made

    def heard(self, **numbers: Any) -> None:
        """Let the engine answer now."""
        replica = self.fleet.replica("r")
        assert replica is not None
        replica.read(self.fleet.now_s(), self.now, EngineReading(**numbers))

    async def go(self, watcher: Watcher, seconds: float, step_s: float = 5.0) -> None:
        """Let the time pass, looking all the while."""
        for _ in range(int(seconds / step_s)):
            self.now += step_s
            self.heard(running=1)
            await watcher.turn()

    async def close(self) -> None:
        for watcher in self.made:
            await watcher.close()


@pytest.fixture
async def stage(redis_url: str) -> Any:
    """Return a stage."""
    made = Stage(redis_url)
    yield made
    await made.close()


def word(watcher: Watcher, service_class: str = "interactive") -> str:
    """Return the word for one class."""
    found = [v.word for v in watcher.current() if v.service_class == service_class]
    return found[0] if found else "nothing"


async def test_the_history_outlives_the_process_that_looked(stage: Stage) -> None:
    """
    A pool that was saturated is saturated still when another process takes over the look.
    """
    first, second = stage.watcher("a"), stage.watcher("b")
    stage.ledger.show(*[waits(f"w{n}") for n in range(20)], *[runs(f"r{n}") for n in range(8)])
    await stage.go(first, 31 * 60)
    assert word(first) == "saturated"

    await second.turn()  # it is not its turn: it shows what the first saw
    assert word(second) == "saturated"
    await first._redis.delete(LOOKER)
    await stage.go(second, 10)
    assert word(second) == "saturated"
    assert word(second, "batch") == "ok"


async def test_time_waited_is_attributed_to_its_blocker(stage: Stage) -> None:
    """
    Three that wait for a slot and one at its own cap make three to one seconds, not four.
    """
    watcher = stage.watcher("a")
    stage.ledger.show(*[waits(f"w{n}") for n in range(3)], waits("own", Blocker.OWN_CAP))
    await watcher.turn()
    await stage.go(watcher, 10, step_s=1.0)

    assert watcher.waited_s["m"]["interactive"] == {"slots": 30.0, "own_cap": 10.0}


async def test_an_old_picture_is_unknown(stage: Stage) -> None:
    """
    Fifteen seconds after the last look there is no verdict to show.
    """
    watcher = stage.watcher("a")
    await stage.go(watcher, 10)
    assert word(watcher) == "ok"
    stage.now += 16
    assert watcher.current() == ()


async def test_a_silent_engine_is_unknown_and_down_when_somebody_waits_for_it(stage: Stage) -> None:
    """
    Nothing heard of the engine and nobody waiting is unknown; people waiting for it is down.
    """
    watcher = stage.watcher("a")
    await stage.go(watcher, 10)
    stage.now += 20  # silence of the engine, not of the watcher
    await watcher.turn()
    assert word(watcher) == "unknown"

    stage.ledger.show(waits("w", Blocker.NO_REPLICA))
    stage.now += 5
    await watcher.turn()
    assert word(watcher) == "down"


async def test_strangers_in_an_engine_are_named_after_a_while(stage: Stage) -> None:
    """
    More in the engine than we hold for a quarter of a minute is foreign load; our own is not.
    """
    watcher = stage.watcher("a")
    stage.ledger.show(runs("mine", weight=2))
    for _ in range(20):
        stage.now += 1
        stage.heard(running=2, waiting=0)
        await watcher.turn()
    replica = stage.fleet.replica("r")
    assert replica is not None
    assert not replica.foreign

    for _ in range(20):
        stage.now += 1
        stage.heard(running=5, waiting=1)
        await watcher.turn()
    assert replica.foreign == 4


async def test_long_waits_are_found_from_starts(stage: Stage) -> None:
    """
    A ticket seen waiting for 12 s and then running has waited 12 s: p95 makes it saturated.
    """
    watcher = stage.watcher("a")
    for n in range(int(31 * 60 / 5)):
        stage.now += 5
        stage.heard(running=1)
        stage.ledger.show(waits(f"t{n + 1}", queued_s=12), runs(f"t{n}"), *[runs("x")] * 8)
        await watcher.turn()

    assert word(watcher) == "saturated"
