"""Properties 23 to 26 of docs/scheduler.md: where conversations run, on both ledgers.

Random histories of sessions over replicas that fill, fail, recover, come and go; the test keeps
its own books of who is at home where and holds every start against them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from gateway.core.affinity import rendezvous
from gateway.core.types import Outcome, ServiceClass, Ticket
from gateway.ledger import homes as memory
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from tests.gateway.ledger.stores import Driver, LuaStore, MemoryTwin

INTERACTIVE = ServiceClass.INTERACTIVE
PLENTY = 10**6
SLOTS = 8


@dataclass
class Homes:
    """A pool under a driver, and what the test knows of it."""

    driver: Driver
    accepts: dict[str, bool] = field(default_factory=dict)
    load: Counter[str] = field(default_factory=Counter)
    home: dict[str, str] = field(default_factory=dict)  # session -> where it was served last
    running: dict[str, tuple[str, str]] = field(default_factory=dict)  # ticket: session, replica
    waiting: dict[str, str] = field(default_factory=dict)  # ticket -> session
    moves: Counter[str] = field(default_factory=Counter)
    count: int = 0

    def __post_init__(self) -> None:
        self.driver.send(
            op.WritePool(PoolPolicy("m", 1, None, None, 60_000, PLENTY, PLENTY)),
            op.WriteKey(KeyPolicy("k", 1, True, PLENTY, PLENTY, False)),
            op.WriteUser(UserPolicy("u", INTERACTIVE, 1, PLENTY, PLENTY)),
        )

    def add(self, *names: str) -> None:
        """Register replicas."""
        for name in names:
            self.accepts[name] = True
            self._send(op.WriteReplica(ReplicaPolicy(name, 1, "m", SLOTS, PLENTY)))

    def observe(self, name: str, accepts: bool) -> None:
        """Say that a replica is well, or not."""
        self.accepts[name] = accepts
        self._send(op.Observe(name, accepts))

    def ask(self, session: str) -> str:
        """Queue one request of a session; return its name."""
        self.count += 1
        name = f"t{self.count}"
        order = rendezvous(session, self.accepts)
        ticket = Ticket(name, "k", "u", INTERACTIVE, "m", 1, 0, 10, order, session, ttl_ms=10**8)
        self.waiting[name] = session
        self._send(op.Enqueue(ticket))
        return name

    def end(self, name: str) -> str:
        """Serve a running request to its end; return the replica it was on."""
        session, replica = self.running.pop(name)
        self.load[replica] -= 1
        if self.home.get(session, replica) != replica:
            self.moves[session] += 1
        self.home[session] = replica
        self._send(op.Release(name, Outcome.SERVED, 10, 10, 20))
        return replica

    def turn(self, session: str) -> str:
        """Let a session have one whole turn; return where."""
        return self.end(self.ask(session))

    def advance(self, ms: int) -> None:
        """Let ledger time pass."""
        self._send(op.Advance(ms))

    def _send(self, operation: op.Operation) -> None:
        for result in self.driver.send(operation):
            if isinstance(result, op.Started):
                self._started(result.ticket_id, result.replica_id)

    def _started(self, name: str, replica: str) -> None:
        """Judge one start by the books as they stand before it."""
        session = self.waiting.pop(name)
        up = [r for r, accepts in self.accepts.items() if accepts]
        bound = max(4, math.ceil(1.25 * (sum(self.load[r] for r in up) + 1) / len(up)))
        fits = {r for r in up if self.load[r] < SLOTS}
        within = {r for r in fits if self.load[r] + 1 <= bound}
        assert replica in fits, "a start where there is no slot"
        home = self.home.get(session)
        if home in within:
            assert replica == home, f"{session} left its home {home} for {replica} (23)"
        assert replica in within or not within, "above the bound while another is below it (25)"
        self.load[replica] += 1
        self.running[name] = session, replica


@pytest.fixture(params=["memory", "redis"])
def homes(request: pytest.FixtureRequest, redis_url: str) -> Homes:
    """Return an empty pool of either ledger."""
    store = MemoryTwin() if request.param == "memory" else LuaStore(redis_url)
    return Homes(Driver(store))


@pytest.mark.parametrize("seed", range(3))
def test_every_start_is_at_home_while_that_is_well_and_within_its_bound(
    homes: Homes, seed: int
) -> None:
    """Through 600 random steps no session leaves a home that could take it, none gets hot."""
    dice = random.Random(seed)
    homes.add("a", "b", "c")
    sessions = [f"s{number}" for number in range(20)]
    for step in range(600):
        roll = dice.random()
        if roll < 0.48:
            # A few sessions have most of the requests, as they do in life.
            homes.ask(dice.choice(sessions[: dice.choice((1, 4, 20))]))
        elif roll < 0.92 and homes.running:
            homes.end(dice.choice(list(homes.running)))
        elif roll < 0.96:
            homes.advance(dice.choice((100, 2_500)))
        else:
            name = dice.choice(list(homes.accepts))
            others = [n for n, accepts in homes.accepts.items() if accepts and n != name]
            homes.observe(name, not homes.accepts[name] or not others)
        if step == 300:
            homes.add("d")
    for name in homes.accepts:
        homes.observe(name, True)
    while homes.running:
        homes.end(next(iter(homes.running)))
        homes.advance(2_500)
    assert not homes.waiting
    assert not homes.driver.store.mismatches()


def test_a_replica_that_goes_moves_its_own_sessions_only_and_gets_none_back(homes: Homes) -> None:
    """Of 60 sessions on three replicas those of the lost one move, once; recovery moves none."""
    homes.add("a", "b", "c")
    sessions = [f"s{number}" for number in range(60)]
    first = {session: homes.turn(session) for session in sessions}
    assert set(first.values()) == {"a", "b", "c"}

    homes.observe("b", False)
    second = {session: homes.turn(session) for session in sessions}
    homes.observe("b", True)
    third = {session: homes.turn(session) for session in sessions}

    moved = {session for session in sessions if second[session] != first[session]}
    assert moved == {session for session in sessions if first[session] == "b"}
    assert third == second  # (26)
    assert homes.turn("a newcomer of b") in homes.accepts


def test_a_new_replica_moves_no_bound_session_and_gets_new_ones(homes: Homes) -> None:
    """Who has a home stays there when a replica is added; newcomers find the new one too."""
    homes.add("a", "b", "c")
    sessions = [f"s{number}" for number in range(60)]
    first = {session: homes.turn(session) for session in sessions}

    homes.add("d")

    assert {session: homes.turn(session) for session in sessions} == first
    newcomers = Counter(homes.turn(f"n{number}") for number in range(100))
    assert 10 <= newcomers["d"] <= 40  # a quarter, by the session's own hash


def test_a_hot_session_spills_at_the_bound(homes: Homes) -> None:
    """Fifty clients of one session: no replica passes 1.25 x the mean, and all slots are used."""
    homes.add("a", "b", "c")
    homes.turn("hot")
    for _ in range(50):
        homes.ask("hot")
    while sum(homes.load.values()) < 3 * SLOTS:
        before = sum(homes.load.values())
        homes.advance(2_001)  # each that finds its home full waits a moment for it
        assert sum(homes.load.values()) > before
    assert max(homes.load.values()) <= math.ceil(1.25 * (3 * SLOTS + 1) / 3)
    for _ in range(50):
        homes.end(next(iter(homes.running)))
        homes.advance(2_001)
    assert not homes.waiting


def test_a_session_has_its_home_until_many_others_were_served_after_it() -> None:
    """Who comes again stays; who was served before `KEPT` others may be forgotten."""
    book = memory.Homes()
    book.bind("often", "a", 1_000)
    book.bind("once", "a", 1_000)
    for number in range(2 * memory.KEPT):
        assert number >= memory.KEPT or book.of("once", 0) == "a"
        book.bind(f"s{number}", "b", 1_000)
        if number % memory.KEPT == memory.KEPT // 2:
            book.bind("often", "a", 1_000)
    assert (book.of("often", 0), book.of("often", 1_000), book.of("once", 0)) == ("a", "", "")


def test_conversations_without_end_fill_no_memory() -> None:
    """However many sessions there were, twice `KEPT` are remembered at most."""
    book = memory.Homes()
    for number in range(5 * memory.KEPT):
        book.bind(f"s{number}", "a", 1_000)
    assert len(book._latest) + len(book._before) <= 2 * memory.KEPT
    assert book.of(f"s{number}", 0) == "a"
