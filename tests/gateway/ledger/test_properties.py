"""The properties of docs/scheduler.md that are a story of their own, on both ledgers.

The number in brackets is the property's; README.md beside this file says where each is held.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.types import Charge, Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy
from gateway.ledger.memory import MemoryStore
from gateway.ledger.redis import KEYS
from tests.gateway.ledger import properties
from tests.gateway.ledger.books import BATCH, INTERACTIVE
from tests.gateway.ledger.properties import Court
from tests.gateway.ledger.stores import START_MS, Driver, LuaStore, MemoryTwin

STORIES = settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
MANY = settings(STORIES, max_examples=300, derandomize=False)


def both(url: str) -> Court:
    lua = LuaStore(url)
    lua.client.flushdb()
    return Court([lua, MemoryTwin()])


def every_story(url: str, seed: int) -> None:
    properties.batch_wins_the_tie(both(url), seed)
    properties.aged_batch_starts_in_time(both(url), seed)
    properties.equals_are_served_alike(both(url), seed)
    properties.equals_are_served_alike(both(url), seed, alone_first=30)
    properties.a_big_one_starts_in_time(both(url), seed)
    properties.a_cancelled_reserver_delays_nobody(both(url), seed)


@given(seed=st.integers(0, 10**9))
@STORIES
def test_batch_is_bounded_equals_are_equal_and_big_ones_start(redis_url: str, seed: int) -> None:
    """(3, 6, 10, 11, 15) hold on both ledgers with the same grants."""
    every_story(redis_url, seed)


@pytest.mark.long
@pytest.mark.timeout(0)
@given(seed=st.integers(0, 10**9))
@MANY
def test_the_stories_hold_for_long(redis_url: str, seed: int) -> None:
    """The same over hundreds of stories."""
    every_story(redis_url, seed)


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis_url: str) -> LuaStore | MemoryStore:
    return MemoryTwin() if request.param == "memory" else LuaStore(redis_url)


def pass_time(store: LuaStore | MemoryStore, driver: Driver, ms: int) -> tuple[op.Result, ...]:
    """Let a process call after so many milliseconds in which nobody else did."""
    call = op.Call(driver.name, driver.sequence, driver.sequence + 1)
    driver.sequence += 1
    if isinstance(store, MemoryStore):
        return store.call(call, ms).results
    seconds, micros = store.client.time()
    store.client.hset(KEYS + "meta", "clock", seconds * 1000 + micros // 1000 - ms)
    return store.call(call, flags="1t").results


def knows(store: LuaStore | MemoryStore, driver: Driver, ticket_id: str) -> bool:
    """Tell whether the ledger still has anything of a process's ticket."""
    if isinstance(store, MemoryStore):
        return ticket_id in store.state.entries
    return bool(store.client.hexists(f"{KEYS}g:{driver.name}", ticket_id))


def test_a_dead_process_is_gone_in_time_from_every_step(store: LuaStore | MemoryStore) -> None:
    """
    (18) What a dead process had queued or not fetched is free after the silence and a tick, what
    it had accepted after the limit; another's tickets and counts are untouched.
    """
    court = Court([store])
    court.house([3])
    court.person("ann", 3)
    court.person("ben", 3)
    ben, dead = court.drivers[0], Driver(store, "dead")
    held = [f"d{n}" for n in range(2)]
    dead.send(*(op.Enqueue(Ticket(n, "ann-0", "ann", INTERACTIVE, "m")) for n in [*held, "d2"]))
    ben.send(op.Enqueue(Ticket("b0", "ben-0", "ben", INTERACTIVE, "m", ttl_ms=10**8)))
    dead.send(op.Enqueue(Ticket("d3", "ann-0", "ann", INTERACTIVE, "m")))
    # d2 ends and d3 does not follow, for ben has had less: queued; d0, d1: accepted.
    dead.send(op.Release("d2"))
    before = pass_time(store, ben, 600)
    assert [r.ticket_id for r in before if isinstance(r, op.Started)] == ["b0"]
    ben.send(op.Release("b0"))  # d3 is started in the dead one's name and never fetched
    ben.send(op.Enqueue(Ticket("b1", "ben-0", "ben", INTERACTIVE, "m", ttl_ms=10**8)))

    after = pass_time(store, ben, 350)
    assert [r.ticket_id for r in after if isinstance(r, op.Started)] == ["b1"]
    asked = ben.send(
        *(
            op.Enqueue(Ticket(f"b{n}", "ben-0", "ben", INTERACTIVE, "m", ttl_ms=10**8))
            for n in (2, 3)
        )
    )
    assert not [r for r in asked if isinstance(r, op.Started)]
    reaped: list[str] = []
    for _ in range(6):
        results = pass_time(store, ben, 1_000)
        reaped += [r.ticket_id for r in results if isinstance(r, op.Started)]
    assert reaped == ["b2", "b3"]
    assert isinstance(store, LuaStore | MemoryTwin)
    assert not store.mismatches()


def test_a_silent_process_gives_its_reservations_back_at_once(
    store: LuaStore | MemoryStore,
) -> None:
    """What a silenced process's waiting tickets had reserved of a counted limit is free again."""
    court = Court([store])
    court.house([1])
    court.person("ann", 1)
    charge = Charge("tokens|ann", 1000, 700, "2026-11-29", START_MS + 3_600_000)
    dead = Driver(store, "dead")
    dead.send(op.Enqueue(Ticket("d0", "ann-0", "ann", INTERACTIVE, "m")))
    dead.send(op.Enqueue(Ticket("d1", "ann-0", "ann", INTERACTIVE, "m", charges=(charge,))))
    pass_time(store, court.drivers[0], 900)

    (told,) = court.drivers[0].send(op.Ask((charge,)))

    assert isinstance(told, op.Told)
    assert told.states[0].used == 0


def test_a_second_ending_and_an_unknown_one_change_nothing(store: LuaStore | MemoryStore) -> None:
    """(19) A release told twice, a release and a cancel of nothing: no start, no count moves."""
    court = Court([store])
    court.house([1])
    court.person("ann", 4)
    court.ask("a", "ann")
    court.ask("b", "ann")

    assert court.end("a") == ["b"]
    court.ask("c", "ann")
    assert court.end("a") == []
    assert court.end("nobody") == []
    assert court.send(op.Cancel("b"), op.Cancel("nobody")) == []
    assert court.end("b") == ["c"]
    assert isinstance(store, LuaStore | MemoryTwin)
    assert not store.mismatches()


def test_a_silent_stream_keeps_its_lease(store: LuaStore | MemoryStore) -> None:
    """
    (20) Half an hour without a word of a ticket ends nothing while its process calls, also when
    it has run for longer than it might have waited.
    """
    court = Court([store])
    court.house([1])
    court.person("ann", 1)
    court.ask("first", "ann")
    court.send(op.Enqueue(Ticket("a", "ann-0", "ann", INTERACTIVE, "m", ttl_ms=60_000)))
    assert court.end("first") == ["a"]
    for _ in range(30):
        assert court.wait(60_000) == []

    court.ask("b", "ann")
    assert "b" not in court.started_at
    assert court.end("a") == ["b"]


@pytest.mark.parametrize("state", ["queued", "granted unread", "running", "put back"])
def test_a_client_leaving_in_any_state_frees_one_lease(
    store: LuaStore | MemoryStore, state: str
) -> None:
    """(21) A client that leaves frees what its ticket held, once, whatever state it is in."""
    court = Court([store])
    court.house([2])
    court.person("ann", 4)
    other = Driver(store, "other")
    court.ask("first", "ann")
    court.ask("second", "ann")
    ticket = Ticket("t", "ann-0", "ann", INTERACTIVE, "m", output_tokens=100, ttl_ms=10**8)
    other.send(op.Enqueue(ticket))
    if state != "queued":
        court.end("second")  # starts t in the other's name
    if state in ("running", "put back"):
        other.send()
    if state == "put back":
        court.ask("waits", "ann")
        other.send(op.PutBack("t"))
    other.send(op.Cancel("t"), op.Release("t", Outcome.ABORTED))

    assert not knows(store, other, "t")
    assert isinstance(store, LuaStore | MemoryTwin)
    assert not store.mismatches()
    left = {"queued": 0, "put back": 1}.get(state, 1)
    started = [n for n in range(3) if court.ask(f"n{n}", "ann")]
    assert len(started) <= left
    assert not store.mismatches()


def test_one_key_runs_in_both_classes(store: LuaStore | MemoryStore) -> None:
    """
    A key for both classes (`service_tier: flex`): its caps hold in each class by itself, a flex
    ticket obeys the limits of batch, stands ten minutes behind, and never counts as a chat.
    """
    court = Court([store])
    court.house([8])
    court.send(op.WriteKey(KeyPolicy("ann-0", 1, True, 2, 100, False)))
    court.person("ann", 4)
    court.send(op.WriteKey(KeyPolicy("ann-0", 2, True, 2, 100, False)))
    for n in range(3):
        court.ask(f"c{n}", "ann")
    for n in range(3):
        court.ask(f"f{n}", "ann", cls=BATCH)

    # Two chats by the key's cap, two flex by the same cap counted for itself (B is two).
    assert set(court.started_at) == {"c0", "c1", "f0", "f1"}
    assert court.end("c0") == ["c2"]
    assert court.end("f0") == ["f2"]
    for name in ("c1", "c2"):
        court.end(name)
    court.ask("f3", "ann", cls=BATCH)
    assert "f3" not in court.started_at
    assert ServiceClass.BATCH in {t.service_class for t in court.tickets.values()}
    assert isinstance(store, LuaStore | MemoryTwin)
    assert not store.mismatches()
