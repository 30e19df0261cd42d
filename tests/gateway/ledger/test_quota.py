"""Counted limits, on both ledgers: exact under any rush, settled to what was really used."""

from __future__ import annotations

import pytest

from gateway.core.types import Charge, Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from tests.gateway.ledger.stores import START_MS, Driver, LuaStore, MemoryTwin

INTERACTIVE = ServiceClass.INTERACTIVE
DAY, DAY_END_MS = "2026-11-29", START_MS + 3_600_000


@pytest.fixture(params=["memory", "redis"])
def driver(request: pytest.FixtureRequest, redis_url: str) -> Driver:
    """Return a process that may run a hundred tickets at once."""
    store = MemoryTwin() if request.param == "memory" else LuaStore(redis_url)
    made = Driver(store)
    made.send(
        op.WritePool(PoolPolicy("m", 1, None, None, 60_000, 1000, 1000)),
        op.WriteReplica(ReplicaPolicy("r0", 1, "m", 100, 10**6)),
        op.WriteKey(KeyPolicy("k", 1, True, 100, 1000, False)),
        op.WriteUser(UserPolicy("u", INTERACTIVE, 1, 100, 1000)),
    )
    return made


def day(amount: int, limit: int = 1000, floor: int = 0) -> Charge:
    return Charge("tokens|u", limit, amount, DAY, DAY_END_MS, floor)


def enqueue(name: str, *charges: Charge) -> op.Enqueue:
    return op.Enqueue(Ticket(name, "k", "u", INTERACTIVE, "m", charges=charges))


def refusals(results: tuple[op.Result, ...]) -> list[op.Turned]:
    return [r for r in results if isinstance(r, op.Turned)]


def used(driver: Driver, charge: Charge) -> int:
    (told,) = driver.send(op.Ask((charge,)))
    assert isinstance(told, op.Told)
    return told.states[0].used


def test_of_fifty_at_once_only_what_is_left_is_admitted(driver: Driver) -> None:
    """
    1,000 tokens left and 50 requests of up to 1,000: one is admitted, and after it settled to
    100 exactly the next that fits passes.
    """
    results = driver.send(*(enqueue(f"t{n}", day(1000)) for n in range(50)))

    assert len(refusals(results)) == 49
    assert used(driver, day(1)) == 1000
    driver.send(op.Release("t0", Outcome.SERVED, 50, 50, tokens=100))
    assert used(driver, day(1)) == 100
    assert refusals(driver.send(enqueue("a", day(901)))) != []
    assert refusals(driver.send(enqueue("b", day(900)))) == []


def test_a_refusal_names_the_limit_what_it_holds_and_when_there_is_room(driver: Driver) -> None:
    """
    Whoever is refused learns which counter binds, how full it is, its limit and its reset.
    """
    driver.send(enqueue("t0", day(800)))
    (refused,) = refusals(driver.send(enqueue("t1", day(201))))

    assert refused.code == "over_quota"
    assert refused.outcome is None
    assert refused.quota is not None
    state = refused.quota
    assert (state.counter, state.window, state.used, state.limit) == ("tokens|u", DAY, 800, 1000)
    assert refused.retry_after_ms == state.resets_in_ms == 3_600_000


def test_charges_are_taken_all_or_none(driver: Driver) -> None:
    """
    A request that one of its limits refuses costs nothing in the others.
    """
    requests = Charge("requests|u", 10, 1, settles=False)
    driver.send(enqueue("t0", requests, day(1001)))

    assert used(driver, requests) == 0
    assert used(driver, day(1)) == 0


def test_a_ticket_that_leaves_unserved_gives_its_tokens_back(driver: Driver) -> None:
    """
    A cancelled ticket reserved tokens for nothing; that it was admitted stays counted.
    """
    requests = Charge("requests|u", 10, 1, settles=False)
    driver.send(op.WriteKey(KeyPolicy("k", 2, True, 1, 1000, False)))
    driver.send(enqueue("t0"), enqueue("t1", requests, day(700)))
    driver.send(op.Cancel("t1"))

    assert used(driver, day(1)) == 0
    assert used(driver, requests) == 1


def test_a_minute_comes_back_steadily(driver: Driver) -> None:
    """
    A full minute's worth may come at once; after it, room for one comes every limit-th of it.
    """
    requests = Charge("requests|u", 6, 1, settles=False)
    results = driver.send(*(enqueue(f"t{n}", requests) for n in range(7)))

    (refused,) = refusals(results)
    assert refused.retry_after_ms == 10_000
    driver.send(op.Advance(9_999))
    assert refusals(driver.send(enqueue("a", requests))) != []
    driver.send(op.Advance(1))
    assert refusals(driver.send(enqueue("b", requests))) == []


def test_a_lost_counter_is_lifted_to_the_books(driver: Driver) -> None:
    """
    A ledger that has lost its counters starts from what the books say was used, never below.
    """
    assert used(driver, day(1, floor=990)) == 990
    assert refusals(driver.send(enqueue("t0", day(11, floor=990)))) != []
    assert refusals(driver.send(enqueue("t1", day(10, floor=990)))) == []
    assert used(driver, day(1, floor=0)) == 1000


def test_what_can_never_fit_says_so(driver: Driver) -> None:
    """
    A request larger than a limit per minute gets no time at which to try again.
    """
    (refused,) = refusals(driver.send(enqueue("t0", Charge("tokens|u", 100, 101))))

    assert refused.retry_after_ms is None
