"""What is told a ledger together: the turns of the memory ledger, the calls to Redis."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.types import Outcome, ServiceClass, Settlement, Ticket
from gateway.ledger.interface import KeyPolicy, Ledger, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryLedger
from gateway.ledger.redis import RedisLedger
from tests.gateway.ledger.awaited import admit

INTERACTIVE = ServiceClass.INTERACTIVE
SERVED = Settlement(Outcome.SERVED, 10, 0, 10, b"{}")


def ticket(name: str) -> Ticket:
    return Ticket(name, "k", "u", INTERACTIVE, "m")


def open_slots(ledger: Ledger, slots: int) -> None:
    ledger.write_pool(PoolPolicy("m", 1, None, None, 60_000, 1000, 1000))
    ledger.write_replica(ReplicaPolicy("r0", 1, "m", slots, 10**6))
    ledger.write_key(KeyPolicy("k", 1, True, 100, 1000, False))
    ledger.write_user(UserPolicy("u", INTERACTIVE, 1, 100, 1000))


async def test_the_memory_ledger_decides_once_in_a_turn_of_the_loop() -> None:
    """Nobody hears a word before the turn is over, and then all do whom it has room for."""
    ledger = MemoryLedger()
    open_slots(ledger, slots=2)
    waits = [admit(ledger, ticket(name)) for name in "abc"]
    assert not any(one.done() for one in waits)
    await asyncio.sleep(0)
    assert [one.done() for one in waits] == [True, True, False]

    waits.append(admit(ledger, ticket("d")))
    ledger.release("b", SERVED)
    ledger.release("a", SERVED)
    assert [one.done() for one in waits] == [True, True, False, False]
    await asyncio.sleep(0)
    assert all(one.done() for one in waits)


async def test_a_release_goes_to_redis_with_the_next_request(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody waits for the slot a call of its own would only hold up the next request.

    Where somebody waits it goes at once.
    """
    monkeypatch.setattr("gateway.ledger.redis.COMPANY_S", 60.0)
    ledger = RedisLedger(redis_url, alone=True)
    await ledger.start()
    open_slots(ledger, slots=1)
    await admit(ledger, ticket("a"))

    ledger.release("a", SERVED)
    await asyncio.sleep(0)
    is_told_at_once = not ledger.batch.has_pending
    granted = admit(ledger, ticket("b"))
    await asyncio.sleep(0)
    is_told_then = not ledger.batch.has_pending
    await granted
    assert (is_told_at_once, is_told_then) == (False, True)

    waits = admit(ledger, ticket("c"))
    ledger.release("b", SERVED)
    await waits
    await ledger.close()


async def test_a_release_waits_only_a_moment_for_company(redis_url: str) -> None:
    """It is told within milliseconds though no other request comes."""
    told = asyncio.Event()
    ledger = RedisLedger(redis_url, alone=True, recorded=lambda record, stream_id: told.set())
    await ledger.start()
    open_slots(ledger, slots=1)
    await admit(ledger, ticket("a"))

    ledger.release("a", SERVED)
    async with asyncio.timeout(0.9):  # sooner than the next sign of life would bring it
        await told.wait()
    await ledger.close()
