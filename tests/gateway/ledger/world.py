"""Random histories of a ledger, and the test's own books of what it may and may not do.

The books know nothing of the ledger's code: they count what was granted and given back, and hold
every start against the caps, budgets and order of docs/scheduler.md as they stood before it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.core.types import Charge, Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from tests.gateway.ledger.stores import START_MS, Driver, LuaStore, MemoryTwin

BATCH, INTERACTIVE = ServiceClass.BATCH, ServiceClass.INTERACTIVE
HANDICAP_MS = 600_000
POOL = "m"
REJECTIONS = ("over_quota", "weight_too_large", "queue_full", "queue_full_key")


class Violation(AssertionError):
    """The ledger broke a rule of docs/scheduler.md."""


def hold(claim: bool, rule: str) -> None:
    if not claim:
        raise Violation(rule)


@dataclass
class Known:
    """One ticket as the test's books have it."""

    ticket: Ticket
    index: int  # order of arrival
    arrived_ms: int
    since_ms: int | None = None
    seq: int = 0  # as the ledger said
    replica: str = ""
    reading: int = 0
    rank_ms: int | None = None
    gateway: str = ""
    is_simple: bool = True  # w = 1, no prompt to read, no session: only caps and slots bind


@dataclass
class Books:
    """Everything the test needs to judge a start, kept by the test itself."""

    now_ms: int = START_MS
    slots: dict[str, int] = field(default_factory=dict)
    accepts: dict[str, bool] = field(default_factory=dict)
    prefill: dict[str, int] = field(default_factory=dict)
    key_cap: dict[str, int] = field(default_factory=dict)
    key_is_default: dict[str, bool] = field(default_factory=dict)
    user_cap: dict[tuple[str, ServiceClass], int | None] = field(default_factory=dict)
    batch_slots: int | None = None
    waiting: dict[str, Known] = field(default_factory=dict)
    running: dict[str, Known] = field(default_factory=dict)
    cancelled: dict[str, Known] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)
    chat_ended_ms: int | None = None
    arrivals: int = 0
    starts: list[str] = field(default_factory=list)
    judges: bool = True
    overdue: list[str] = field(default_factory=list)

    # Counting

    def held(self, wanted: Callable[[Known], bool]) -> int:
        return sum(k.ticket.weight for k in self.running.values() if wanted(k))

    def total(self) -> int:
        return sum(n for name, n in self.slots.items() if self.accepts[name])

    def is_lent(self) -> bool:
        known = [*self.waiting.values(), *self.running.values()]
        if any(k.ticket.service_class is INTERACTIVE for k in known):
            return False
        return self.chat_ended_ms is None or self.now_ms - self.chat_ended_ms >= 60_000

    def batch_limit(self) -> int:
        total = self.total()
        if total <= 0:
            return 0
        if self.is_lent():
            return max(1, total - 1)
        busy = max(1, total // 4) if self.batch_slots is None else self.batch_slots
        return min(busy, total - 1) if total > 1 else min(busy, 1)

    def own_room(self, known: Known) -> bool:
        """Rules 1 and 2 of §2: the caps of the key and of the user."""
        t = known.ticket
        cls = t.service_class
        lent = cls is BATCH and self.is_lent()
        same_key = self.held(lambda k: (k.ticket.key_id, k.ticket.service_class) == (t.key_id, cls))
        binds = not (lent and self.key_is_default[t.key_id])
        if binds and same_key + t.weight > self.key_cap[t.key_id]:
            return False
        cap = self.user_cap[(t.user_id, cls)]
        if cap is None:
            if lent:
                return True
            cap = 2 if cls is BATCH else max(1, min(4, (self.total() + 1) // 2))
        same_user = self.held(
            lambda k: (k.ticket.user_id, k.ticket.service_class) == (t.user_id, cls)
        )
        return same_user + t.weight <= cap

    def pool_room(self, known: Known) -> bool:
        held = self.held(lambda k: k.ticket.service_class is BATCH)
        is_batch = known.ticket.service_class is BATCH
        return not is_batch or held + known.ticket.weight <= self.batch_limit()

    def rank(self, known: Known) -> tuple[int, int, int]:
        since = self.now_ms if known.since_ms is None else known.since_ms
        later = HANDICAP_MS if known.ticket.service_class is BATCH else 0
        return (since + later, since, known.index)

    def heads(self, cls: ServiceClass) -> list[Known]:
        """Return who speaks for each user: the oldest of the keys' heads with room of its own."""
        first: dict[str, Known] = {}
        for known in self.waiting.values():
            if known.ticket.service_class is cls:
                other = first.get(known.ticket.key_id)
                if other is None or known.index < other.index:
                    first[known.ticket.key_id] = known
        of_user: dict[str, Known] = {}
        for known in sorted(first.values(), key=lambda k: k.index):
            if self.own_room(known):
                of_user.setdefault(known.ticket.user_id, known)
        return list(of_user.values())

    def free_replica(self) -> bool:
        return any(
            self.held(lambda k, r=r: k.replica == r) < n
            for r, n in self.slots.items()
            if self.accepts[r]
        )

    # Judging

    def start(self, result: op.Started) -> None:
        """Judge one start against the books as they stand before it."""
        if not self.judges and result.ticket_id in self.cancelled:
            # It was started by another process's call before its cancel was said.
            self.waiting[result.ticket_id] = self.cancelled.pop(result.ticket_id)
            self.ended[result.ticket_id] -= 1
        hold(result.ticket_id in self.waiting, "a ticket started that was not waiting (17)")
        known = self.waiting[result.ticket_id]
        if self.judges:
            self._judge_caps(known, result.replica_id)
            self._judge_order(known)
        expected = result.rank_ms if known.rank_ms is None else known.rank_ms
        if known.since_ms is not None:
            expected = known.since_ms + (HANDICAP_MS if known.ticket.service_class is BATCH else 0)
        hold(result.rank_ms == expected, "a rank changed after it was set (4)")
        del self.waiting[result.ticket_id]
        known.replica, known.since_ms = result.replica_id, result.ageing_since_ms
        known.seq = result.seq
        known.reading = min(known.ticket.prefill_tokens, self.prefill[known.replica])
        self.running[result.ticket_id] = known
        self.starts.append(result.ticket_id)

    def _judge_caps(self, known: Known, replica: str) -> None:
        t = known.ticket
        hold(self.accepts.get(replica, False), "a start on a replica that takes no work (rule 6)")
        here = self.held(lambda k: k.replica == replica)
        hold(here + t.weight <= self.slots[replica], "more on a replica than its slots (7)")
        hold(self.own_room(known), "a cap of a key or a user was passed (7)")
        hold(self.pool_room(known), "batch holds more than B (7)")
        reading = [k for k in self.running.values() if k.replica == replica and k.reading]
        cost = min(t.prefill_tokens, self.prefill[replica])
        if cost and reading:
            total = sum(k.reading for k in reading) + cost
            hold(total <= self.prefill[replica], "prefill budget passed (8)")
            is_long = t.prefill_tokens >= 4096
            others = any(k.ticket.prefill_tokens >= 4096 for k in reading)
            hold(not (is_long and others), "two long prompts at once (8)")

    def _judge_order(self, known: Known) -> None:
        older = [
            k.ticket.ticket_id
            for k in self.waiting.values()
            if (k.ticket.key_id, k.ticket.service_class)
            == (known.ticket.key_id, known.ticket.service_class)
            and k.index < known.index
        ]
        hold(not older, "a key's tickets did not start first come, first served (5)")
        if known.ticket.service_class is BATCH:
            # Rule of §3: no batch start while an admissible interactive head stands before it.
            for head in self.heads(INTERACTIVE):
                passed = head.is_simple and self.rank(head) < self.rank(known)
                hold(not passed, "batch passed an older interactive ticket (2)")
        elif known.is_simple:
            for head in self.heads(BATCH):
                aged = head.since_ms is not None and self.now_ms - head.since_ms >= HANDICAP_MS
                passed = aged and head.is_simple and self.pool_room(head)
                passed = passed and self.rank(head) < self.rank(known)
                hold(not passed, "a chat passed a batch ticket that had waited its time (1, 3)")

    def leave(self, ticket_id: str, how: str) -> None:
        known = self.waiting.pop(ticket_id, None) or self.running.pop(ticket_id, None)
        if known is None and not self.judges:
            return  # cancelled here before its eviction was heard
        hold(known is not None, f"{ticket_id} ended as {how} but was not there (17)")
        self.ended[ticket_id] += 1
        hold(self.ended[ticket_id] == 1, "a ticket ended twice (17)")
        admitted = how not in REJECTIONS
        if known is not None and admitted and known.ticket.service_class is INTERACTIVE:
            self.chat_ended_ms = self.now_ms

    def judge_rest(self) -> None:
        """After a call: nothing that may start is left waiting (14), the window holds A (§3)."""
        hold(not set(self.overdue) & set(self.waiting), "a ticket outstayed its time (§10)")
        for cls in ServiceClass:
            # A big ticket that was passed too often keeps a replica free for itself.
            if any(not head.is_simple for c in ServiceClass for head in self.heads(c)):
                break
            for head in self.heads(cls):
                idle = head.is_simple and self.free_replica() and self.pool_room(head)
                hold(not idle, f"{head.ticket.ticket_id} waits beside a free slot (14)")
        flows: dict[str, list[Known]] = {}
        for known in self.waiting.values():
            if known.ticket.service_class is BATCH:
                flows.setdefault(known.ticket.user_id, []).append(known)
        for user, queued in flows.items():
            cap = self.user_cap[(user, BATCH)]
            window = 2 if cap is None else cap
            queued.sort(key=lambda k: k.index)
            hold(
                all(k.since_ms is not None for k in queued[:window]),
                "one of a flow's oldest batch tickets does not age (§3)",
            )


@dataclass(frozen=True)
class Sizes:
    """What a history plays with."""

    weights: bool = True
    prompts: bool = True
    sessions: bool = False
    caps_change: bool = True
    health_changes: bool = True
    gateways: int = 1
    chat: float = 0.66  # part of the tickets that are interactive
    quotas: bool = False
    patient: bool = False  # nobody's time in the queue is short, and much time passes


class History:
    """Plays random operations on one or two stores and judges what comes of them."""

    def __init__(self, stores: list[LuaStore | MemoryTwin], rng: random.Random, sizes: Sizes):
        self.rng, self.sizes, self.books = rng, sizes, Books()
        # With several processes what one causes for another is heard late: no order to judge.
        self.books.judges = sizes.gateways == 1
        self.names = [f"g{i}" for i in range(sizes.gateways)]
        self.drivers = {n: [Driver(store, n) for store in stores] for n in self.names}
        self.keys = [(f"k{i}", f"u{i % 4}") for i in range(8)]
        self.version = 1
        self._register()

    def _register(self) -> None:
        b = self.books
        policy = PoolPolicy(POOL, 1, None, None, 60_000, 1000, 1000)
        operations: list[op.Operation] = [op.WritePool(policy)]
        for i in range(self.rng.choice([1, 2, 2, 3])):
            name = f"r{i}"
            b.slots[name], b.accepts[name] = self.rng.choice([1, 2, 4, 8]), True
            b.prefill[name] = self.rng.choice([8192, 32_768])
            replica = ReplicaPolicy(name, 1, POOL, b.slots[name], b.prefill[name])
            operations.append(op.WriteReplica(replica))
        for key, user in self.keys:
            b.key_cap[key] = self.rng.choice([1, 2, 2, 3])
            b.key_is_default[key] = self.rng.random() < 0.5
            caps = KeyPolicy(key, 1, True, b.key_cap[key], 1000, b.key_is_default[key])
            operations.append(op.WriteKey(caps))
            for cls in ServiceClass:
                cap = b.user_cap[(user, cls)] = self.rng.choice([None, None, 1, 2, 3])
                operations.append(op.WriteUser(UserPolicy(user, cls, 1, cap, 1000)))
        self._send(self.names[0], *operations)

    # Playing

    def play(self, steps: int) -> None:
        for _ in range(steps):
            gateway = self.rng.choice(self.names)
            count = self.rng.choice([0, 1, 1, 1, 2, 5])
            self._send(gateway, *(o for _ in range(count) for o in self._operation(gateway)))

    def drain(self) -> None:
        """End everything: each ticket must come to exactly one end (17)."""
        for _ in range(400):
            if not (self.books.waiting or self.books.running):
                break
            for name in self.names:
                mine = [k for k in self.books.running.values() if k.gateway == name]
                self._send(name, *(self._release(k) for k in mine))
            if not self.books.running:
                self._send(self.names[0], op.Advance(10_000))
        hold(not self.books.waiting, "tickets are left waiting at the end (17)")

    def _operation(self, gateway: str) -> list[op.Operation]:
        roll, b = self.rng.random(), self.books
        if self.sizes.gateways > 1 and roll < 0.03:
            self._adopt(gateway)
            return []
        mine = [k for k in b.running.values() if k.gateway == gateway]
        queued = [k for k in b.waiting.values() if k.gateway == gateway]
        if roll < 0.42:
            return [op.Enqueue(self._ticket())]
        if roll < 0.66:
            return [self._release(self.rng.choice(mine))] if mine else []
        if roll < 0.72:
            return [op.Cancel(self.rng.choice(queued).ticket.ticket_id)] if queued else []
        if roll < 0.77:
            return [op.PutBack(self.rng.choice(mine).ticket.ticket_id)] if mine else []
        if roll < 0.84:
            return [op.PrefillDone(self.rng.choice(mine).ticket.ticket_id)] if mine else []
        if roll < 0.93:
            steps = [250, 300_000, 600_000] if self.sizes.patient else [1, 3_000, 20_000, 61_000]
            return [op.Advance(self.rng.choice(steps))]
        return self._change()

    def _adopt(self, gateway: str) -> None:
        """Let a process tell all it has anew, as it does when the ledger has lost something."""
        b = self.books
        running = [k for k in b.running.values() if k.gateway == gateway]
        queued = [k for k in b.waiting.values() if k.gateway == gateway and k.seq]
        facts: list[op.Operation] = [
            op.Hold(k.ticket, k.replica, k.seq, k.arrived_ms, k.since_ms, b.now_ms, 5000,
                    k.reading > 0)
            for k in running
        ]  # fmt: skip
        facts += [op.Wait(k.ticket, k.seq, k.arrived_ms, k.since_ms) for k in queued]
        facts += [self._release(k) for k in running[:1]]
        for k in running[:1]:
            b.leave(k.ticket.ticket_id, "released")
        for k in [k for k in b.waiting.values() if k.gateway == gateway and not k.seq]:
            b.leave(k.ticket.ticket_id, "forgotten")
        answers = [d.send(*facts, adopts=True) for d in self.drivers[gateway]]
        self._compare(answers)
        for result in answers[0]:
            self._hear(result)

    def _change(self) -> list[op.Operation]:
        b = self.books
        self.version += 1
        if self.rng.random() < 0.5 and self.sizes.caps_change:
            key, user = self.rng.choice(self.keys)
            cls, cap = self.rng.choice(list(ServiceClass)), self.rng.choice([1, 2, 3, 4])
            caps = KeyPolicy(key, self.version, True, cap, 1000, b.key_is_default[key])
            cap_of_user = self.rng.choice([None, 1, 2, 3, 5])
            user_caps = UserPolicy(user, cls, self.version, cap_of_user, 1000)
            return [op.WriteKey(caps), op.WriteUser(user_caps)]
        if not self.sizes.health_changes:
            return []
        return [op.Observe(self.rng.choice(list(b.slots)), accepts=self.rng.random() < 0.7)]

    def _ticket(self) -> Ticket:
        b, rng = self.books, self.rng
        key, user = rng.choice(self.keys)
        cls = INTERACTIVE if rng.random() < self.sizes.chat else BATCH
        prompt = rng.choice([0, 100, 3000, 5000, 9000]) if self.sizes.prompts else 0
        session = rng.choice(["", "s1", "s2"]) if self.sizes.sessions else ""
        order = tuple(sorted(b.slots, reverse=session == "s2")) if session else ()
        weight = rng.choice([1, 1, 1, 1, 2, 3]) if self.sizes.weights else 1
        b.arrivals += 1
        return Ticket(
            f"t{b.arrivals:05d}", key, user, cls, POOL, weight, prompt, rng.choice([1, 50, 900]),
            order, session, 10**8 if self.sizes.patient else rng.choice([61_000, 3_600_000]),
            charges=self._charges(user) if self.sizes.quotas else (),
        )  # fmt: skip

    def _charges(self, user: str) -> tuple[Charge, ...]:
        tokens = self.rng.choice([1, 50, 900, 4000])
        end_ms = START_MS + 10**9
        return (
            Charge(f"requests|{user}", 5, 1, settles=False),
            Charge(f"tokens|{user}", 3000, tokens),
            Charge(f"day|{user}", 20_000, tokens, "2026-11-29", end_ms, floor=500),
        )

    def _release(self, known: Known) -> op.Operation:
        outcome = Outcome.SERVED if self.rng.random() < 0.8 else Outcome.FAILED
        return op.Release(
            known.ticket.ticket_id,
            outcome,
            self.rng.choice([0, 50, 4000]),
            self.rng.choice([1, 700]),
            self.rng.choice([1, 200, 5000]),
        )

    # Telling the stores and the books

    def _send(self, gateway: str, *operations: op.Operation) -> None:
        """Send operations one by one, so that the books stand as the ledger did at each."""
        chosen = self._unique(operations)
        for operation in chosen or [op.Beat()]:
            answers = [driver.send(operation) for driver in self.drivers[gateway]]
            self._compare(answers)
            self._note(gateway, operation)
            for result in answers[0]:
                self._hear(result)
            if self.books.judges:
                self.books.judge_rest()

    @staticmethod
    def _compare(answers: list[tuple[op.Result, ...]]) -> None:
        grants = [_grants(answer) for answer in answers]
        hold(all(g == grants[0] for g in grants), f"the ledgers differ: {grants}")

    @staticmethod
    def _unique(operations: tuple[op.Operation, ...]) -> list[op.Operation]:
        """Drop a second ending of the same ticket in one call; the test ends each once."""
        seen: set[str] = set()
        kept: list[op.Operation] = []
        for operation in operations:
            name = getattr(operation, "ticket_id", None)
            if name in seen:
                continue
            if name:
                seen.add(name)
            kept.append(operation)
        return kept

    def _note(self, gateway: str, operation: op.Operation) -> None:
        b = self.books
        match operation:
            case op.Enqueue(ticket):
                simple = ticket.weight == 1 and not ticket.prefill_tokens and not ticket.session
                b.waiting[ticket.ticket_id] = Known(
                    ticket, int(ticket.ticket_id[1:]), b.now_ms, gateway=gateway, is_simple=simple,
                    since_ms=b.now_ms if ticket.service_class is INTERACTIVE else None,
                )  # fmt: skip
            case op.Release(ticket_id) if ticket_id in b.running:
                b.leave(ticket_id, "released")
            case op.Cancel(ticket_id) if ticket_id in b.waiting:
                b.cancelled[ticket_id] = b.waiting[ticket_id]
                b.leave(ticket_id, "cancelled")
            case op.PutBack(ticket_id) if ticket_id in b.running:
                known = b.running.pop(ticket_id)
                known.replica, known.reading = "", 0
                b.waiting[ticket_id] = known
            case op.PrefillDone(ticket_id) if ticket_id in b.running:
                b.running[ticket_id].reading = 0
            case op.Advance(ms):
                b.now_ms += ms
                b.overdue = [
                    name
                    for name, k in b.waiting.items()
                    if k.arrived_ms + k.ticket.ttl_ms <= b.now_ms
                ]
            case op.WriteKey(policy):
                b.key_cap[policy.key_id] = policy.in_flight
            case op.WriteUser(policy):
                b.user_cap[(policy.user_id, policy.service_class)] = policy.in_flight
            case op.Observe(replica_id, accepts):
                b.accepts[replica_id] = accepts
            case _:
                pass

    def _hear(self, result: op.Result) -> None:
        b = self.books
        match result:
            case op.Started():
                b.start(result)
            case op.Queued() if result.ticket_id in b.waiting:
                known = b.waiting[result.ticket_id]
                if known.since_ms is not None:
                    hold(known.since_ms == result.ageing_since_ms, "an age moved (4)")
                known.since_ms, known.seq = result.ageing_since_ms, result.seq
            case op.Turned():
                b.leave(result.ticket_id, result.code)
            case _:
                pass


def _grants(results: tuple[op.Result, ...]) -> list[op.Result]:
    return [r for r in results if isinstance(r, op.Started | op.Turned)]
