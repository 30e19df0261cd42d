"""The test's own books of what a ledger may and may not do.

The books know nothing of the ledger's code: they count what was granted and given back, and hold
every start against the caps, budgets and order of docs/scheduler.md as they stood before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.core.types import ServiceClass, Ticket
from gateway.ledger import operations as op
from tests.gateway.ledger.stores import START_MS

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
        first: dict[tuple[str, str], Known] = {}
        for known in self.waiting.values():
            if known.ticket.service_class is cls:
                head = (known.ticket.key_id, known.ticket.user_id)
                other = first.get(head)
                if other is None or known.index < other.index:
                    first[head] = known
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
            if (k.ticket.key_id, k.ticket.user_id, k.ticket.service_class)
            == (known.ticket.key_id, known.ticket.user_id, known.ticket.service_class)
            and k.index < known.index
        ]
        hold(not older, "a person's tickets under a key did not start first come, first served (5)")
        if known.ticket.service_class is BATCH:
            # Rule of §3: no batch start while an admissible interactive head stands before it.
            for head in self.heads(INTERACTIVE):
                passed = head.is_simple and self.pool_room(head)
                passed = passed and self.rank(head) < self.rank(known)
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
