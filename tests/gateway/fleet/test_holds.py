"""A replica that is measured takes no other work, on every gateway, and never for longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import redis.asyncio as redis

from gateway.errors import Unavailable
from gateway.fleet import holds as holds_module
from gateway.fleet.holds import AlreadyHeld, Hold, Holds
from gateway.fleet.prober import Fleet
from gateway.holding import refuse_while_measured
from gateway.ledger.interface import Ledger
from quotas.snapshots.directory import Fleet as FleetSnapshot
from quotas.snapshots.directory import ReplicaSnapshot
from tests.gateway.fleet.test_prober import HeardLedger, until

RUN = Hold("run_1", "being measured", time.time() + 86_400)


def replica(name: str, pool: str = "m") -> ReplicaSnapshot:
    """Return a replica nobody probes."""
    return ReplicaSnapshot(name, name, pool, "http://127.0.0.1:9", "vllm", 4, 1, False, "active")


@asynccontextmanager
async def gateway(redis_url: str, *names: str) -> AsyncIterator[tuple[Fleet, Holds]]:
    """Run what one gateway process has of the fleet; nothing is probed."""
    fleet = Fleet(cast(Ledger, HeardLedger()))
    fleet.follow(FleetSnapshot(1, replicas=tuple(map(replica, names))))
    holds = Holds(redis.Redis.from_url(redis_url), fleet, poll_s=0.05)
    await holds.start()
    try:
        yield fleet, holds
    finally:
        await holds.close()


def state(fleet: Fleet, name: str) -> Any:
    """Return what people see of a replica's hold."""
    found = fleet.replica(name)
    assert found is not None
    return found.hold


async def test_a_hold_reaches_every_gateway_and_ends_everywhere(redis_url: str) -> None:
    """
    Taken at one gateway, a hold binds the other within its next look, and so does its end.
    """
    async with gateway(redis_url, "a", "b") as (one, holds), gateway(redis_url, "a") as (two, _):
        await holds.take("a", RUN)
        assert state(one, "a") == (RUN.until, RUN.why)
        assert state(one, "b") is None
        await until(lambda: state(two, "a"), 2)

        await holds.give_back("a", "run_1")
        assert state(one, "a") is None
        await until(lambda: state(two, "a") is None, 2)


async def test_a_second_run_cannot_take_or_end_a_hold(redis_url: str) -> None:
    """
    One run at a time holds a replica; another run's end does not free it.
    """
    async with gateway(redis_url, "a") as (fleet, holds):
        await holds.take("a", RUN)
        with pytest.raises(AlreadyHeld):
            await holds.take("a", Hold("run_2", "me too", RUN.until))
        await holds.give_back("a", "run_2")
        assert state(fleet, "a")


async def test_a_hold_that_is_not_renewed_ends_by_itself(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A measuring process that dies gives the card back within its lease.
    """
    monkeypatch.setattr(holds_module, "LEASE_S", 0.4)
    async with gateway(redis_url, "a") as (fleet, holds):
        for _ in range(4):
            await holds.take("a", RUN)
            await asyncio.sleep(0.2)
        assert state(fleet, "a")
        await until(lambda: state(fleet, "a") is None, 2)


async def test_arrivals_are_told_when_the_card_is_back(redis_url: str) -> None:
    """
    While all replicas of a pool are measured, arrivals get 503 `measuring` with its end; while
    one is free, they are served by that one.
    """
    async with gateway(redis_url, "a", "b") as (fleet, holds):
        await holds.take("a", RUN)
        refuse_while_measured(fleet, "m")
        await holds.take("b", Hold("run_2", "too", time.time() + 60))

        with pytest.raises(Unavailable) as refused:
            refuse_while_measured(fleet, "m")
        assert refused.value.code == "measuring"
        assert refused.value.retry_after_s == pytest.approx(60, abs=2)
        refuse_while_measured(fleet, "another pool")
