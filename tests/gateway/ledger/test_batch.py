"""The conversation between one process and the ledger, with every way a reply can go wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from gateway.core.types import Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger import recount
from gateway.ledger.batch import MOST_OPERATIONS, Batch
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryStore
from tests.gateway.ledger.stores import START_MS

INTERACTIVE = ServiceClass.INTERACTIVE
SLOTS = 3


class Server:
    """A memory ledger behind a bad line."""

    def __init__(self) -> None:
        self.usage: list[bytes] = []
        self.store = self.fresh()
        self.most = 0

    def fresh(self) -> MemoryStore:
        return MemoryStore(test_switch=True, start_ms=START_MS, append_usage=self._append)

    def _append(self, record: bytes) -> str:
        self.usage.append(record)
        return f"{len(self.usage)}-0"

    def forget(self) -> None:
        """FLUSHALL: everything but the usage already written elsewhere is gone."""
        self.store = self.fresh()

    def call(self, call: op.Call) -> op.Reply:
        reply = self.store.call(call)
        replica = self.store.state.replicas.get("r0")
        self.most = max(self.most, replica.in_flight if replica else 0)
        assert recount.mismatches(self.store.state) == []
        return reply


def register(batch: Batch) -> None:
    batch.add(op.WritePool(PoolPolicy("m", 1, None, None, 60_000, 1000, 1000)))
    batch.add(op.WriteReplica(ReplicaPolicy("r0", 1, "m", SLOTS, 8192)))
    batch.add(op.WriteKey(KeyPolicy("k", 1, True, 100, 1000, False)))
    batch.add(op.WriteUser(UserPolicy("u", INTERACTIVE, 1, 100, 1000)))


def ticket(n: int) -> Ticket:
    return Ticket(f"t{n}", "k", "u", INTERACTIVE, "m", ttl_ms=10**9)


def release(ticket_id: str) -> op.Release:
    return op.Release(ticket_id, Outcome.SERVED, 1, 1, record=ticket_id.encode())


def settle(batch: Batch, server: Server) -> list[op.Result]:
    """Exchange calls until nothing is left to say."""
    results: list[op.Result] = []
    while batch.is_waiting or batch.has_pending:
        call = batch.again() or batch.next_call()
        assert call is not None
        results += batch.answer(server.call(call))
    return results


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def batch(server: Server) -> Batch:
    """Return a process that has told the ledger its policies."""
    made = Batch("g1")
    register(made)
    settle(made, server)
    return made


def started(results: list[op.Result]) -> set[str]:
    return {r.ticket_id for r in results if isinstance(r, op.Started)}


def test_one_call_is_under_way_and_the_rest_goes_into_the_next(batch: Batch) -> None:
    """
    What arrives while a call is under way waits for the next, however much it is.
    """
    for n in range(3):
        batch.add(op.Enqueue(ticket(n)))
    first = batch.next_call()
    for n in range(3, 3 + MOST_OPERATIONS + 1):
        batch.add(op.Enqueue(ticket(n)))

    assert first is not None
    assert len(first.operations) == 3
    assert batch.next_call() is None
    batch.answer(op.Reply(first.sequence, START_MS, True))
    second = batch.next_call()
    assert second is not None
    assert len(second.operations) == MOST_OPERATIONS


def test_a_lost_reply_costs_no_start_and_no_second_usage_record(
    batch: Batch, server: Server
) -> None:
    """
    A release whose reply was lost counts once, and a grant in that reply is given again.
    """
    batch.add(op.Enqueue(ticket(1)))
    settle(batch, server)
    batch.add(release("t1"))
    batch.add(op.Enqueue(ticket(2)))
    lost = batch.next_call()
    assert lost is not None
    server.call(lost)

    results = settle(batch, server)

    assert started(results) == {"t2"}
    assert server.usage == [b"t1"]
    assert set(server.store.state.entries) == {"t2"}


def test_a_call_that_never_arrived_is_made_good(batch: Batch, server: Server) -> None:
    """
    A call lost on its way is simply sent again.
    """
    batch.add(op.Enqueue(ticket(1)))
    batch.next_call()

    assert started(settle(batch, server)) == {"t1"}


def test_doubled_and_late_replies_change_nothing(batch: Batch, server: Server) -> None:
    """
    A reply heard twice, or after its call was answered, is no news.
    """
    batch.add(op.Enqueue(ticket(1)))
    call = batch.next_call()
    assert call is not None
    reply = server.call(call)
    batch.answer(reply)
    batch.add(op.Enqueue(ticket(2)))
    batch.next_call()

    assert batch.answer(reply) == ()
    assert batch.is_waiting
    assert started(settle(batch, server)) == {"t2"}


def test_an_emptied_ledger_learns_the_leases_before_anything_starts(
    batch: Batch, server: Server
) -> None:
    """
    After a loss of everything the slots held count again at once, and waiting tickets keep rank.
    """
    for n in range(5):
        batch.add(op.Enqueue(ticket(n)))
    settle(batch, server)
    before = {n: (m.seq, m.ageing_since_ms) for n, m in batch.tickets.items()}
    server.forget()

    assert started(settle_after_beat(batch, server)) == set()
    assert server.store.state.replicas["r0"].in_flight == SLOTS
    queued = {
        n: (e.seq, e.ageing_since_ms)
        for n, e in server.store.state.entries.items()
        if not e.replica_id
    }
    assert queued == {n: before[n] for n in ("t3", "t4")}
    batch.add(release("t0"))
    assert started(settle(batch, server)) == {"t3"}


def settle_after_beat(batch: Batch, server: Server) -> list[op.Result]:
    call = batch.next_call()
    assert call is not None
    batch.answer(server.call(call))
    return settle(batch, server)


def test_nothing_starts_while_an_adoption_is_being_told(batch: Batch, server: Server) -> None:
    """
    A process that tells its leases anew never loses their slots to another in between.
    """
    for n in range(SLOTS):
        batch.add(op.Enqueue(ticket(n)))
    settle(batch, server)
    waits = op.Call("g2", 0, 1, (op.Enqueue(ticket(9)),))
    server.call(waits)
    lost = batch.next_call()
    assert lost is not None
    server.call(lost)

    settle(batch, server)

    assert batch.adoptions == 1
    assert server.store.state.replicas["r0"].in_flight == SLOTS
    assert not server.store.state.entries["t9"].replica_id


def test_a_silenced_process_returns_with_its_ranks(batch: Batch, server: Server) -> None:
    """
    A process that was silent loses its places in the queue and gets them back by adopting.
    """
    for n in range(4):
        batch.add(op.Enqueue(ticket(n)))
    settle(batch, server)
    server.store.call(op.Call("g2", 0, 1), 800)
    assert "t3" not in server.store.state.entries
    assert server.store.state.replicas["r0"].in_flight == SLOTS

    settle_after_beat(batch, server)

    assert server.store.state.entries["t3"].seq == 4
    assert batch.adoptions == 1


class Storm:
    """A process at work while calls, replies and the ledger itself are lost."""

    def __init__(self, seed: int) -> None:
        self.rng, self.server, self.batch = random.Random(seed), Server(), Batch("g1")
        register(self.batch)
        self.waiting, self.running = set[str](), set[str]()
        self.served, self.cancelled = set[str](), set[str]()

    def blow(self, steps: int) -> None:
        """Do something, and exchange at most one call, which may be lost either way."""
        for n in range(steps):
            if n < steps // 2:
                self.act(n)
            if self.rng.random() < 0.02 and not self.batch.is_waiting:
                # With a call under way the usage it wrote would be lost with the rest.
                self.server.forget()
            call = self.batch.again() or self.batch.next_call()
            assert call is not None
            fate = self.rng.random()
            if fate < 0.1:
                continue  # never arrived
            reply = self.server.call(call)
            if fate >= 0.25:
                self.hear(self.batch.answer(reply))

    def act(self, n: int) -> None:
        self.batch.add(op.Enqueue(ticket(n)))
        self.waiting.add(f"t{n}")
        if self.running and self.rng.random() < 0.8:
            self.end(self.rng.choice(sorted(self.running)))
        if self.rng.random() < 0.1:
            gone = self.rng.choice(sorted(self.waiting))
            self.waiting.discard(gone)
            self.cancelled.add(gone)
            self.batch.add(op.Cancel(gone))

    def end(self, name: str) -> None:
        self.running.discard(name)
        self.served.add(name)
        self.batch.add(release(name))

    def hear(self, results: Iterable[op.Result]) -> None:
        for name in started(list(results)):
            if name in self.waiting:
                self.waiting.discard(name)
                self.running.add(name)
            else:
                assert name in self.cancelled, "a ticket started twice"
                self.batch.add(op.Release(name, Outcome.EVICTED_CLIENT_GONE))

    def calm(self) -> None:
        """End what runs until nothing is left."""
        batch = self.batch
        while self.waiting or self.running or batch.has_pending or batch.is_waiting:
            for name in sorted(self.running):
                self.end(name)
            self.hear(settle(batch, self.server))


@pytest.mark.parametrize("seed", range(20))
def test_no_history_of_losses_leaks_or_doubles(seed: int) -> None:
    """
    Whatever is lost, doubled or emptied, every ticket is served once, one usage record each, and
    never more than the slots are held.
    """
    storm = Storm(seed)

    storm.blow(400)
    storm.calm()

    assert storm.server.store.state.entries == {}
    assert storm.batch.tickets == {}
    assert sorted(storm.server.usage) == sorted(name.encode() for name in storm.served)
    assert storm.server.most <= SLOTS
