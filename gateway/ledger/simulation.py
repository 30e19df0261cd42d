"""Runs the real scheduler under a virtual clock: the same code, thousands of times faster.

Rule 1: nothing here decides who runs; every arrival and end goes through the memory ledger.
Rule 2: the same seed gives the same arrivals and the same service times, whatever the policy, so
two policies are compared on one trace.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gateway.core.ranking import BATCH_HANDICAP_MS
from gateway.core.types import Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryStore
from gateway.ledger.state import BATCH, INTERACTIVE, Rules
from gateway.ledger.trace import Arrival, Backlog

POOL, REPLICA, GATEWAY = "model", "replica", "simulation"
START_MS = 1_700_000_000_000
TICK_MS = 1_000
BUDGET_READ_MS = 4_000  # in which an engine reads the prompts of one budget, until it is measured
UNBOUNDED = 10**9


@dataclass(frozen=True, slots=True)
class Policy:
    """What an admin may change, with the defaults of docs/scheduler.md."""

    slots: int = 8
    prefill_budget: int = 8_192
    key_cap: int | None = None  # None: the default of the class, two
    user_cap: int | None = None
    batch_cap: int | None = None
    batch_slots: int | None = None
    batch_slots_idle: int | None = None
    batch_idle_after_s: int = 60
    handicap_ms: int = BATCH_HANDICAP_MS
    queued_per_key: int = UNBOUNDED
    ttl_ms: int = UNBOUNDED
    feeds: bool = True  # False: a backlog is queued all at once
    accrual_window: bool = True


@dataclass(slots=True)
class Result:
    """What came of a run: waits in ms by class, and per user."""

    waits: dict[ServiceClass, list[int]] = field(default_factory=lambda: defaultdict(list))
    waits_of: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    done: dict[ServiceClass, int] = field(default_factory=lambda: defaultdict(int))
    #: How long each that ended had held its slot.
    seconds: dict[ServiceClass, list[float]] = field(default_factory=lambda: defaultdict(list))
    aged: int = 0  # batch tickets that started after waiting out the handicap
    refused: int = 0
    timed_out: int = 0
    #: How long each job took, from its beginning to the end of its last line; by user.
    jobs: list[tuple[str, int]] = field(default_factory=list)
    #: Of each refusal: (Retry-After, until its queue had room again, admitted at the return).
    returns: list[tuple[int, int | None, bool]] = field(default_factory=list)

    def line(self, service_class: ServiceClass) -> tuple[float, float, float]:
        """Return median, 95th percentile and maximum of the waits, in seconds."""
        return spread(self.waits[service_class])

    def others(self, user: str) -> tuple[float, float, float]:
        """Return the same over everybody's interactive waits but this user's."""
        return spread([w for u, waits in self.waits_of.items() if u != user for w in waits])


@dataclass(slots=True)
class Job:
    """A backlog under way."""

    user: str
    at_ms: int
    lines: deque[Arrival]  # not fed yet
    open: int  # not ended yet


def spread(waits_ms: Iterable[int]) -> tuple[float, float, float]:
    """Return median, 95th percentile and maximum in seconds; zeros when nobody waited."""
    ordered = sorted(waits_ms)
    if not ordered:
        return (0.0, 0.0, 0.0)
    at = [len(ordered) // 2, min(len(ordered) - 1, len(ordered) * 95 // 100), -1]
    median, p95, most = (ordered[i] / 1000 for i in at)
    return (median, p95, most)


class Simulation:
    """One trace under one policy."""

    def __init__(
        self, arrivals: Sequence[Arrival], backlogs: Sequence[Backlog], policy: Policy
    ) -> None:
        self.policy = policy
        self.result = Result()
        rules = Rules(handicap_ms=policy.handicap_ms, accrual_window=policy.accrual_window)
        self._store = MemoryStore(rules, test_switch=True, start_ms=START_MS)
        self._now_ms = 0
        self._sequence = 0
        self._count = 0
        self._events: list[tuple[int, int, Arrival | str]] = []
        self._coming: dict[str, Arrival] = {}  # by ticket, waiting or running
        self._jobs: dict[str, deque[Job]] = {}
        self._line_of: dict[str, Job] = {}  # ticket -> whose line it is
        self._refused: dict[str, tuple[int, int, int | None]] = {}  # ticket -> at, retry, free at
        self._ticks = False
        for one in sorted(backlogs, key=lambda b: b.at_ms):
            jobs = self._jobs.setdefault(one.user, deque())
            jobs.append(Job(one.user, one.at_ms, deque(one.lines), len(one.lines)))
            self._at(one.at_ms, "")
        self._register({a.user for a in arrivals} | set(self._jobs))
        for arrival in arrivals:
            self._at(arrival.at_ms, arrival)

    def run(self, until_s: float) -> Result:
        """Play until the end of the time; what waits then has no wait that is known."""
        end_ms = round(until_s * 1000)
        while self._events and self._events[0][0] <= end_ms:
            at_ms, _, event = heapq.heappop(self._events)
            passed, self._now_ms = at_ms - self._now_ms, at_ms
            if isinstance(event, Arrival):
                self._arrive(event, passed)
            elif event:
                self._end(event, passed)
            else:
                self._ticks = False
                self._call(op.Advance(passed))
            self._feed()
            if self._store.state.flows and not self._ticks:
                # Time alone changes something only while somebody waits.
                self._ticks = True
                self._at(self._now_ms // TICK_MS * TICK_MS + TICK_MS, "")
        return self.result

    def _at(self, at_ms: int, event: Arrival | str) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_ms, self._count, event))

    def _register(self, users: set[str]) -> None:
        policy, window = self.policy, 2 if self.policy.batch_cap is None else self.policy.batch_cap
        self._call(
            op.WritePool(
                PoolPolicy(
                    POOL, 1, policy.batch_slots, policy.batch_slots_idle,
                    policy.batch_idle_after_s * 1000, UNBOUNDED, UNBOUNDED,
                )
            ),
            op.WriteReplica(
                ReplicaPolicy(REPLICA, 1, POOL, policy.slots, policy.prefill_budget)
            ),
        )  # fmt: skip
        queued = policy.queued_per_key
        for user in sorted(users):
            chat = 2 if policy.key_cap is None else policy.key_cap
            self._call(
                op.WriteKey(KeyPolicy(user, 1, True, chat, queued, False, INTERACTIVE)),
                op.WriteKey(
                    KeyPolicy(user, 1, True, window, UNBOUNDED, policy.batch_cap is None, BATCH)
                ),
                op.WriteUser(UserPolicy(user, INTERACTIVE, 1, policy.user_cap, UNBOUNDED)),
                op.WriteUser(UserPolicy(user, BATCH, 1, policy.batch_cap, UNBOUNDED)),
            )

    def _call(self, *operations: op.Operation) -> None:
        self._sequence += 1
        call = op.Call(GATEWAY, self._sequence - 1, self._sequence, operations)
        for result in self._store.call(call).results:
            if isinstance(result, op.Started):
                self._started(result)
            elif isinstance(result, op.Turned):
                self._turned(result)

    # What happens

    def _arrive(
        self, arrival: Arrival, passed: int = 0, place: str = "", job: Job | None = None
    ) -> None:
        self._count += 1
        name = f"t{self._count}"
        self._coming[name] = arrival
        if job is not None:
            self._line_of[name] = job
        ticket = Ticket(
            name, arrival.user, arrival.user, arrival.service_class, POOL,
            prefill_tokens=arrival.prompt_tokens, output_tokens=arrival.output_tokens,
            ttl_ms=self.policy.ttl_ms, place=place,
        )  # fmt: skip
        if place:
            at, retry, free_at = self._refused.pop(place)
            free_for = None if free_at is None else at + retry - free_at
            self.result.returns.append((retry, free_for, True))
        self._call(op.Advance(passed), op.Enqueue(ticket))

    def _started(self, started: op.Started) -> None:
        arrival = self._coming[started.ticket_id]
        wait = started.started_ms - started.arrived_ms
        self.result.waits[arrival.service_class].append(wait)
        if arrival.service_class is INTERACTIVE:
            self.result.waits_of[arrival.user].append(wait)
        elif wait >= self.policy.handicap_ms:
            self.result.aged += 1
        at_ms = started.started_ms - START_MS
        read_ms = arrival.read_ms
        if read_ms is None:
            read_ms = arrival.prompt_tokens * BUDGET_READ_MS // self.policy.prefill_budget
        if arrival.prompt_tokens and read_ms < arrival.service_ms:
            self._at(at_ms + read_ms, f"read {started.ticket_id}")
        self._at(at_ms + arrival.service_ms, started.ticket_id)

    def _turned(self, turned: op.Turned) -> None:
        arrival = self._coming.pop(turned.ticket_id)
        if turned.outcome is not None:
            self.result.timed_out += 1
            return
        self.result.refused += 1
        if turned.place and turned.retry_after_ms is not None:
            self._refused[turned.place] = (self._now_ms, turned.retry_after_ms, None)
            back = replace(arrival, at_ms=self._now_ms + turned.retry_after_ms)
            self._at(back.at_ms, f"return {turned.place}")
            self._coming[f"return {turned.place}"] = back
        elif self.result.returns:
            retry, free_for, _ = self.result.returns[-1]
            self.result.returns[-1] = (retry, free_for, False)

    def _end(self, name: str, passed: int) -> None:
        if name.startswith("read "):
            self._call(op.Advance(passed), op.PrefillDone(name.removeprefix("read ")))
            return
        arrival = self._coming.pop(name)
        if name.startswith("return "):
            self._arrive(arrival, passed, place=name.removeprefix("return "))
            return
        self.result.done[arrival.service_class] += 1
        self.result.seconds[arrival.service_class].append(arrival.service_ms / 1000)
        self._call(
            op.Advance(passed),
            op.Release(name, Outcome.SERVED, arrival.prompt_tokens, arrival.output_tokens),
        )
        self._note_room(arrival.user)
        self._note_line(name)

    def _note_room(self, user: str) -> None:
        """Remember when a refused ticket's queue had room again."""
        bound = self.policy.queued_per_key
        if self._store.state.key_queued.get((INTERACTIVE, user), 0) >= bound:
            return
        for place, (at, retry, free_at) in list(self._refused.items()):
            if free_at is None and self._coming[f"return {place}"].user == user:
                self._refused[place] = (at, retry, self._now_ms)

    def _note_line(self, name: str) -> None:
        """A job has ended with its last line."""
        job = self._line_of.pop(name, None)
        if job is not None:
            job.open -= 1
            if not job.open:
                self.result.jobs.append((job.user, self._now_ms - job.at_ms))

    def _feed(self) -> None:
        """Do as the job runner does: keep the accrual window full, and no more."""
        window = 2 if self.policy.batch_cap is None else self.policy.batch_cap
        for user, jobs in self._jobs.items():
            while jobs and jobs[0].at_ms <= self._now_ms:
                job = jobs[0]
                queued = self._store.state.user_queued.get((BATCH, user), 0)
                room = window - queued if self.policy.feeds else len(job.lines)
                for _ in range(min(room, len(job.lines))):
                    line = job.lines.popleft()
                    self._arrive(replace(line, at_ms=self._now_ms), job=job)
                if job.lines:
                    break
                jobs.popleft()
