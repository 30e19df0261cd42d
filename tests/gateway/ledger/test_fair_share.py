"""Fair share between people who come at different times, on both ledgers."""

from __future__ import annotations

from collections import deque

import pytest

from gateway.core.types import Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from tests.gateway.ledger.stores import Driver, LuaStore, MemoryTwin

INTERACTIVE = ServiceClass.INTERACTIVE
SLOTS = 4
PROMPT, WRITTEN, UNBOUNDED = 20, 20, 4096
MINUTE_MS = 60_000


@pytest.fixture(params=["memory", "redis"])
def driver(request: pytest.FixtureRequest, redis_url: str) -> Driver:
    """Return a process before a card of four slots that one person may fill."""
    store = MemoryTwin() if request.param == "memory" else LuaStore(redis_url)
    made = Driver(store)
    made.send(
        op.WritePool(PoolPolicy("m", 1, None, None, 60_000, 1000, 1000)),
        op.WriteReplica(ReplicaPolicy("r0", 1, "m", SLOTS, 10**6)),
        *(op.WriteKey(KeyPolicy(f"k-{u}", 1, True, SLOTS, 100, False)) for u in ("ann", "ben")),
        *(op.WriteUser(UserPolicy(u, INTERACTIVE, 1, SLOTS, 100)) for u in ("ann", "ben")),
    )
    return made


def chats(user: str, count: int) -> list[op.Operation]:
    """Return so many questions that do not say how long an answer may become."""
    return [
        op.Enqueue(Ticket(f"{user}{n:02d}", f"k-{user}", user, INTERACTIVE, "m", 1, PROMPT,
                          UNBOUNDED, ttl_ms=10**8))
        for n in range(count)
    ]  # fmt: skip


def started(results: tuple[op.Result, ...]) -> list[str]:
    return [r.ticket_id for r in results if isinstance(r, op.Started)]


def mismatches(driver: Driver) -> list[str]:
    assert isinstance(driver.store, LuaStore | MemoryTwin)
    return driver.store.mismatches()


def release(name: str) -> op.Release:
    return op.Release(name, Outcome.SERVED, PROMPT, WRITTEN, PROMPT + WRITTEN)


def play(driver: Driver, running: list[str]) -> list[str]:
    """End what runs, the oldest first, until nothing is left; return everything in its order."""
    order, line = list(running), deque(running)
    while line:
        fresh = started(driver.send(release(line.popleft())))
        order += fresh
        line += fresh
        assert not mismatches(driver)
    return order


def test_a_newcomer_pays_for_nobody_elses_estimate(driver: Driver) -> None:
    """
    Somebody who comes while another's long estimates are in flight, later corrected to short
    answers, takes turns with that person from the first free slot on.
    """
    running = started(driver.send(*chats("ann", 16)))
    assert running == ["ann00", "ann01", "ann02", "ann03"]
    assert not started(driver.send(*chats("ben", 8)))

    order = play(driver, running)

    places = [place for place, name in enumerate(order) if name.startswith("ben")]
    assert len(order) == 24
    assert places[0] == SLOTS
    # Eight turns each behind ann's first four, give or take what is in flight at once.
    assert places[-1] < SLOTS + 16 + 2


def test_the_estimates_in_flight_shrink_with_the_service(driver: Driver) -> None:
    """
    Minutes later the estimates still running are taken off as they are kept by then, so a
    newcomer is neither lifted too high nor below nothing, and every count equals its recount.
    """
    running = started(driver.send(*chats("ann", 16)))
    driver.send(op.Advance(7 * MINUTE_MS + 1))
    assert not mismatches(driver)
    driver.send(*chats("ben", 8))
    in_its_place = started(driver.send(op.PutBack(running[-1])))
    assert not mismatches(driver)

    play(driver, [*running[:-1], *in_its_place])

    assert in_its_place == ["ben00"]


def test_idling_gives_no_credit(driver: Driver) -> None:
    """
    Somebody who comes after another has been served for a while does not first make up for it:
    both take turns, and the other starts again before the newcomer's line is empty.
    """
    running = started(driver.send(*chats("ann", 40)))
    line = deque(running)
    for _ in range(20):
        line += started(driver.send(release(line.popleft())))
    driver.send(*chats("ben", 12))

    order = play(driver, list(line))[SLOTS:]

    assert sum(name.startswith("ann") for name in order[:12]) >= 4
