"""Who waits, who runs, and every count of it: the memory ledger's state and its elementary moves.

Rule 1: an entry is queued or holds a lease, never both; counts change only together with it.
Rule 2: every count equals a recount of the entries (`recount.mismatches`), and none is negative.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.core import sharing
from gateway.core.placing import LONG_PROMPT, Replica
from gateway.core.ranking import BATCH_HANDICAP_MS, rank
from gateway.core.types import ServiceClass, Ticket
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy

BATCH: Final = ServiceClass.BATCH  # a member of an enum is slow to look up
INTERACTIVE: Final = ServiceClass.INTERACTIVE

FlowId = tuple[str, ServiceClass, str]  # pool, class, user
Owner = tuple[ServiceClass, str]  # class and key, or class and user
Kind = tuple[str, ServiceClass]  # pool and class
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers of docs/scheduler.md that are the same for every pool."""

    handicap_ms: int = BATCH_HANDICAP_MS
    silence_ms: int = 700
    limit_ms: int = 5_000
    no_replica_ms: int = 60_000
    binding_ms: int = 900_000
    place_grace_ms: int = 15_000
    accrual_window: bool = True  # False: every queued batch ticket ages (for comparison only)


class Entry:
    """One ticket in the ledger, queued (no replica) or in flight."""

    __slots__ = (
        "ageing_since_ms", "arrived_ms", "avoid", "bypassed", "charge", "deadline_ms",
        "first_bypass_ms", "flow", "gateway", "is_accepted", "key", "kind", "pick_since_ms",
        "rank_ms", "reading", "replica_id", "seq", "started_ms", "ticket", "user",
    )  # fmt: skip

    def __init__(
        self,
        ticket: Ticket,
        gateway: str,
        seq: int,
        arrived_ms: int,
        deadline_ms: int,
        ageing_since_ms: int | None = None,
    ) -> None:
        self.ticket: Final = ticket
        self.gateway: Final = gateway
        self.seq = seq
        self.arrived_ms: Final = arrived_ms
        self.deadline_ms: Final = deadline_ms
        self.ageing_since_ms = ageing_since_ms
        self.replica_id = ""
        self.started_ms = 0
        self.rank_ms = 0  # at the start
        self.charge = 0  # service taken for it, decaying like its user's
        self.reading = 0  # prefill budget it takes until its prompt has been read
        self.is_accepted = True  # False: its owner has not fetched the grant yet
        self.pick_since_ms: int | None = None  # since when it waits for its home replica
        self.first_bypass_ms: int | None = None
        self.bypassed = 0
        self.avoid = ""
        # What counts are kept by; made once, for they are asked for a dozen times.
        cls = ticket.service_class
        self.flow: Final[FlowId] = (ticket.pool, cls, ticket.user_id)
        self.key: Final[Owner] = (cls, ticket.key_id)
        self.user: Final[Owner] = (cls, ticket.user_id)
        self.kind: Final[Kind] = (ticket.pool, cls)

    def copy(self) -> Entry:
        """Return a twin to play with."""
        twin = Entry(
            self.ticket, self.gateway, self.seq, self.arrived_ms, self.deadline_ms,
            self.ageing_since_ms,
        )  # fmt: skip
        twin.replica_id, twin.started_ms = self.replica_id, self.started_ms
        twin.rank_ms, twin.charge, twin.reading = self.rank_ms, self.charge, self.reading
        twin.is_accepted, twin.pick_since_ms = self.is_accepted, self.pick_since_ms
        twin.first_bypass_ms, twin.bypassed = self.first_bypass_ms, self.bypassed
        twin.avoid = self.avoid
        return twin


@dataclass(slots=True)
class Flow:
    """One user's queued tickets of one class in one pool; each key's oldest first."""

    queues: dict[str, list[Entry]] = field(default_factory=dict)

    def oldest_first(self) -> list[Entry]:
        return sorted((e for q in self.queues.values() for e in q), key=lambda e: e.seq)


def add(counts: dict[K, int], name: K, n: int) -> None:
    """Count n more; what is not there is nothing."""
    counts[name] = counts.get(name, 0) + n


class LedgerState:
    """Entries, policies and counts, changed by the moves below and by nothing else."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.now_ms = 0
        self.seq = 0
        #: Every ticket the ledger knows, by its id; the truth all counts are held against.
        self.entries: dict[str, Entry] = {}
        #: All and only flows with something queued.
        self.flows: dict[FlowId, Flow] = {}
        self.keys: dict[Owner, KeyPolicy] = {}
        self.users: dict[Owner, UserPolicy] = {}
        self.pools: dict[str, PoolPolicy] = {}
        self.replica_policies: dict[str, ReplicaPolicy] = {}
        #: Registered replicas, and removed ones that still hold a lease.
        self.replicas: dict[str, Replica] = {}
        #: What follows from the replicas, by pool; see `count_fleet`.
        self.fleet: dict[str, list[Replica]] = {}
        self.up: dict[str, list[Replica]] = {}  # those that take work
        self.slots_total: dict[str, int] = {}  # S_total: slots of those
        self.registered: dict[str, list[int]] = {}  # slots of those in the books, up or not
        #: When queued tickets' time is up; those that have left since are passed over.
        self.deadlines: list[tuple[int, int, str]] = []
        self.key_in_flight: dict[Owner, int] = {}
        self.user_in_flight: dict[Owner, int] = {}
        self.batch_in_flight: dict[str, int] = {}
        self.key_queued: dict[Owner, int] = {}
        self.user_queued: dict[Owner, int] = {}
        self.pool_queued: dict[Kind, int] = {}
        self.pool_tickets: dict[Kind, int] = {}  # queued and in flight
        # Of tickets that bring a group: what it holds of a replica, what waits for a pool.
        self.group_in_flight: dict[tuple[str, str], int] = {}
        self.group_queued: dict[tuple[str, str], int] = {}
        self.user_tickets: dict[Owner, int] = {}  # a user with any is active
        # The part of V that leases have charged.
        self.user_charged: dict[Owner, int] = {}
        self.service: dict[Owner, int] = {}  # V
        self.decayed_at = 0  # the last minute of ledger time in which service shrank
        self.completion_average: dict[FlowId, int] = {}
        self.hold_average: dict[Kind, int] = {}
        self.chat_ended_ms: dict[str, int] = {}  # pool -> when interactive work last ended
        self.down_since_ms: dict[str, int] = {}  # pool -> since when no replica accepts

    # Reading

    def rank(self, entry: Entry) -> int:
        """Return the entry's rank; outside its window it stands as if it began to age now."""
        since = entry.ageing_since_ms
        return rank(
            self.now_ms if since is None else since,
            entry.ticket.service_class,
            self.rules.handicap_ms,
        )

    def slots_up(self, pool: str) -> int:
        """Return S_total: slots of the replicas that take work."""
        return self.slots_total.get(pool, 0)

    def is_lent(self, pool: str) -> bool:
        """Tell whether batch may borrow: nobody chats here, nor did a short while ago."""
        if self.pool_tickets.get((pool, INTERACTIVE)):
            return False
        ended = self.chat_ended_ms.get(pool)
        return ended is None or self.now_ms - ended >= self.pools[pool].batch_idle_after_ms

    def batch_limit(self, pool: str) -> int:
        """Return B, the slots batch may hold in the pool now."""
        policy = self.pools[pool]
        return sharing.batch_slots(
            policy.batch_slots, policy.batch_slots_idle, self.slots_up(pool), self.is_lent(pool)
        )

    def is_kept(self, pool: str, weight: int, group: str = "") -> bool:
        """Rule 7: tell whether what is free is kept for other groups than this one.

        After every start the free slots still cover what each other group has reserved and does
        not hold, so together the others never hold more than the slots less the reserved ones.
        """
        reserved = self.pools[pool].reserved
        if not reserved:
            return False
        up = self.up.get(pool, [])
        kept = 0
        for name, slots in reserved:
            if name != group:
                held = sum(self.group_in_flight.get((r.replica_id, name), 0) for r in up)
                kept += max(0, slots - held)
        free = sum(max(0, r.slots_now - r.in_flight) for r in up)
        return kept > 0 and free - kept < weight

    def is_all_kept(self, pool: str) -> bool:
        """Tell whether nothing is free but for groups none of whose tickets wait."""
        reserved = self.pools[pool].reserved
        waits = any(self.group_queued.get((pool, name)) for name, _ in reserved)
        return not waits and self.is_kept(pool, 1)

    def has_own_room(self, entry: Entry) -> bool:
        """Rules 1 and 2: the ticket fits its key's and its user's caps."""
        key, user = self.keys.get(entry.key), self.users.get(entry.user)
        if key is None or user is None or not key.live:
            return False
        ticket = entry.ticket
        is_batch = ticket.service_class is BATCH
        lent = is_batch and self.is_lent(ticket.pool)
        key_binds = not (lent and key.in_flight_is_default)
        if key_binds and self.key_in_flight.get(entry.key, 0) + ticket.weight > key.in_flight:
            return False
        if lent and user.in_flight is None:
            return True
        cap = user.in_flight
        if cap is None:
            cap = sharing.user_cap(None, is_batch, self.slots_up(ticket.pool))
        return self.user_in_flight.get(entry.user, 0) + ticket.weight <= cap

    def window_size(self, user: Owner) -> int:
        """Return A: how many of a batch flow's queued tickets age."""
        policy = self.users.get(user)
        return sharing.user_cap(policy.in_flight if policy else None, True, 0)

    def head(self, flow: Flow) -> Entry | None:
        """Return the oldest of the flow's heads that has room; None means the flow is parked."""
        heads = sorted((queue[0] for queue in flow.queues.values()), key=lambda e: e.seq)
        return next((entry for entry in heads if self.has_own_room(entry)), None)

    # Moves

    def count_fleet(self) -> None:
        """Work out anew what follows from the replicas: for each pool those up, and its slots."""
        self.fleet, self.up, self.registered = {}, {}, {}
        for replica in self.replicas.values():
            self.fleet.setdefault(replica.pool, []).append(replica)
            if replica.accepts:
                self.up.setdefault(replica.pool, []).append(replica)
        self.slots_total = {pool: sum(r.slots_now for r in up) for pool, up in self.up.items()}
        for policy in self.replica_policies.values():
            self.registered.setdefault(policy.pool, []).append(policy.slots)

    def enter(self, entry: Entry) -> None:
        """Take a ticket in; a user who was away gets no credit for it."""
        self.entries[entry.ticket.ticket_id] = entry
        others = self.user_tickets.get(entry.user, 0)
        if not others:
            self._lift(entry.user)
        self.user_tickets[entry.user] = others + 1
        add(self.pool_tickets, entry.kind, 1)

    def _lift(self, user: Owner) -> None:
        """Raise V to the least of the active, who are taken without what is only estimated."""
        settled = [
            self.service.get(owner, 0) - self.user_charged.get(owner, 0)
            for owner, n in self.user_tickets.items()
            if n > 0 and owner[0] is user[0]
        ]
        if settled:
            self.service[user] = max(self.service.get(user, 0), min(settled))

    def late(self, most: int) -> list[Entry]:
        """Take the queued tickets whose time is up out of the calendar, in its order."""
        late: dict[str, Entry] = {}
        while self.deadlines and self.deadlines[0][0] <= self.now_ms and len(late) < most:
            deadline_ms, _, ticket_id = heapq.heappop(self.deadlines)
            entry = self.entries.get(ticket_id)
            if entry is not None and not entry.replica_id and entry.deadline_ms == deadline_ms:
                late[ticket_id] = entry
        return list(late.values())

    def _note_deadline(self, entry: Entry) -> None:
        heapq.heappush(self.deadlines, (entry.deadline_ms, entry.seq, entry.ticket.ticket_id))
        if len(self.deadlines) > 2 * len(self.entries) + 1_000:
            queued = (e for e in self.entries.values() if not e.replica_id)
            self.deadlines = [(e.deadline_ms, e.seq, e.ticket.ticket_id) for e in queued]
            heapq.heapify(self.deadlines)

    def leave(self, entry: Entry) -> None:
        """Let a ticket go for good; it must be neither queued nor in flight any more."""
        del self.entries[entry.ticket.ticket_id]
        left = self.user_tickets[entry.user] - 1
        if left:
            self.user_tickets[entry.user] = left
        else:
            del self.user_tickets[entry.user]
        add(self.pool_tickets, entry.kind, -1)
        if entry.ticket.service_class is INTERACTIVE:
            self.chat_ended_ms[entry.ticket.pool] = self.now_ms

    def queue(self, entry: Entry) -> None:
        """Put an entry into its key's queue at the place its sequence gives it."""
        flow = self.flows.setdefault(entry.flow, Flow())
        insort(flow.queues.setdefault(entry.ticket.key_id, []), entry, key=lambda e: e.seq)
        self._note_deadline(entry)
        self._count_queued(entry, +1)

    def unqueue(self, entry: Entry) -> None:
        flow = self.flows[entry.flow]
        flow.queues[entry.ticket.key_id].remove(entry)
        if not flow.queues[entry.ticket.key_id]:
            del flow.queues[entry.ticket.key_id]
        if not flow.queues:
            del self.flows[entry.flow]
        self._count_queued(entry, -1)

    def _count_queued(self, entry: Entry, n: int) -> None:
        add(self.key_queued, entry.key, n)
        add(self.user_queued, entry.user, n)
        add(self.pool_queued, entry.kind, n)
        if entry.ticket.group:
            add(self.group_queued, (entry.ticket.pool, entry.ticket.group), n)

    def hold(self, entry: Entry, replica_id: str, charge: int, reads: bool) -> None:
        """Give the entry its slots, its prefill budget and its charge."""
        entry.replica_id, entry.charge = replica_id, charge
        add(self.service, entry.user, charge)
        add(self.user_charged, entry.user, charge)
        self._count_held(entry, entry.ticket.weight)
        replica, tokens = self.replicas[replica_id], entry.ticket.prefill_tokens
        if reads and tokens:
            entry.reading = replica.prefill_cost(tokens)
            replica.prefill += entry.reading
            replica.long_prompts += tokens >= LONG_PROMPT

    def stop_reading(self, entry: Entry) -> None:
        """Give the prefill budget back, once."""
        if entry.reading:
            replica = self.replicas[entry.replica_id]
            replica.prefill -= entry.reading
            replica.long_prompts -= entry.ticket.prefill_tokens >= LONG_PROMPT
            entry.reading = 0

    def unhold(self, entry: Entry) -> None:
        """Take slots and prefill budget back; what V was charged is the caller's to settle."""
        self.stop_reading(entry)
        add(self.user_charged, entry.user, -entry.charge)
        entry.charge = 0
        self._count_held(entry, -entry.ticket.weight)
        replica = self.replicas[entry.replica_id]
        if not replica.in_flight and entry.replica_id not in self.replica_policies:
            del self.replicas[entry.replica_id]
            self.count_fleet()
        entry.replica_id = ""

    def _count_held(self, entry: Entry, n: int) -> None:
        self.replicas[entry.replica_id].in_flight += n
        add(self.key_in_flight, entry.key, n)
        add(self.user_in_flight, entry.user, n)
        if entry.ticket.service_class is BATCH:
            add(self.batch_in_flight, entry.ticket.pool, n)
        if entry.ticket.group:
            add(self.group_in_flight, (entry.replica_id, entry.ticket.group), n)
