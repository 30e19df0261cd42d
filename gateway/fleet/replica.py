"""Everything known about one replica: probes, breaker, brake, rates; decisions without I/O.

The prober feeds it, `observation` says what the ledger should hear and `live` what people see.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.engines.base import UNKNOWN, EngineFacts, EngineReading, Health
from gateway.fleet.activity import Activity
from gateway.fleet.backoff import BackOff
from gateway.fleet.brake import Brake
from gateway.fleet.breaker import Breaker, Event, State
from gateway.fleet.health import Condition, Probes
from gateway.fleet.pace import Pace
from gateway.fleet.rates import Counters, Rates
from gateway.measure.fingerprint import diff, fingerprint
from quotas.snapshots.directory import ReplicaSnapshot
from quotas.snapshots.live import EngineLive
from quotas.snapshots.measured import Measured

STALE_S = 15.0  # older numbers are unknown
FLOWING_S = 4.0  # content this fresh proves life
STALL_S = 50.0
STALL_PREFILLS = 3.0
FULL_CACHE = 0.95


@dataclass(frozen=True, slots=True)
class Observation:
    """What the ledger is told."""

    accepts: bool
    slots: int
    incarnation: str  # "" when the engine does not tell
    affine: bool  # sessions may be sent home to it


class Replica:
    """One replica as this process sees it."""

    def __init__(self, snapshot: ReplicaSnapshot) -> None:
        self.snapshot = snapshot
        self.probes = Probes()
        self.breaker = Breaker()
        self.counters = Counters()
        self.brake = Brake(snapshot.slots, snapshot.slots)
        self.activity = Activity(self._heard)
        self.facts: EngineFacts | None = None
        self.reading: EngineReading = UNKNOWN
        self.read_s: float | None = None
        self.seen_at: float | None = None  # Unix seconds
        self.metrics_silent = False
        # Pages this engine does not have, and when to ask again: at once when it is new.
        self.absent: dict[str, float] = {}
        self.back_off = BackOff()
        self.hold: tuple[float, str] | None = None  # until when (Unix seconds) and why
        self.foreign: int | None = None  # requests in the engine that are not ours
        self.refused_address = ""
        self.key_refused_on: set[str] = set()  # pages that said 401
        self.pace = Pace()
        self.measured: Measured | None = None
        self._progress: tuple[int | None, float] = (None, 0.0)
        self._preemptions: int | None = None
        self._heard_events: list[Event | None] = []

    def _heard(self, event: Event | None) -> None:
        self._heard_events.append(event)

    def replaced(self, snapshot: ReplicaSnapshot) -> None:
        """Take over what an admin changed."""
        self.snapshot = snapshot
        self.brake = self.brake.resized(self._full())

    def _full(self) -> int:
        told = self.facts.slots if self.facts else None
        # llama.cpp's slots are literal; more of ours than of its own would wait inside it.
        return max(1, min(self.snapshot.slots, told) if told else self.snapshot.slots)

    def probed(self, now_s: float, wall_s: float, health: Health) -> None:
        """Take in the answer of the health page."""
        flowing = now_s - self.activity.moved_s < FLOWING_S
        before = self.probes.condition
        self.probes = self.probes.after(health, bytes_flow=flowing)
        good = health is Health.OK
        if good:
            self.seen_at = wall_s
        if good or not flowing:
            self.on(Event.PROBE_GOOD if good else Event.PROBE_BAD, now_s)
        if self.probes.condition is Condition.DOWN and before is not Condition.DOWN:
            self.counters.forget()
            self._is_new()

    def read(self, now_s: float, wall_s: float, reading: EngineReading) -> bool:
        """Take in the engine's numbers; return True when it was restarted since the last ones."""
        restarted = self.counters.add(now_s, reading)
        if restarted:
            self._is_new()
        self.reading, self.read_s, self.seen_at = reading, now_s, wall_s
        self.metrics_silent = False
        self._note_progress(now_s, reading)
        self.pace.add(now_s, reading, self.measured, self.activity.longest_prefill_s())
        preempted = self._preempted(reading)
        self.brake = self.brake.after(now_s, reading.running, reading.waiting, preempted)
        return restarted

    def _is_new(self) -> None:
        """Forget what may differ after a restart: slots, model, pages."""
        self.facts = None
        self._preemptions = None
        self.absent.clear()
        self.pace.forget()

    def learned(self, facts: EngineFacts) -> None:
        """Take in what the engine reveals about itself."""
        self.facts = facts
        self.brake = self.brake.resized(self._full())

    def _preempted(self, reading: EngineReading) -> bool:
        before, self._preemptions = self._preemptions, reading.preemptions_total
        now = reading.preemptions_total
        return before is not None and now is not None and now > before

    def _note_progress(self, now_s: float, reading: EngineReading) -> None:
        # Any change counts: a slot that was cut short takes its numbers back.
        if reading.progress is not None and reading.progress != self._progress[0]:
            moved = self._progress[0] is not None
            self._progress = (reading.progress, now_s)
            if moved:
                self.on(Event.PROGRESS, now_s)

    def drain_events(self, now_s: float) -> None:
        """Take in what requests went through since the last call."""
        events, self._heard_events = self._heard_events, []
        self.activity.is_well = False  # time passes: the next success counts again
        for event in events:
            if event is None:
                self.back_off = self.back_off.after_busy(now_s)
                continue
            if event is Event.SUCCESS:
                self.back_off = self.back_off.after_success()
            self.on(event, now_s)

    def on(self, event: Event, now_s: float) -> None:
        """Let the breaker judge an event."""
        self.breaker = self.breaker.after(event, now_s)

    def watch(self, now_s: float) -> bool:
        """Return True when this replica has just been found stalled: work, and no progress."""
        active = self.activity
        if active.in_flight == 0:
            return False
        moved_s = max(active.moved_s, active.waiting_since_s, self._progress[1])
        patience_s = max(STALL_S, STALL_PREFILLS * active.longest_prefill_s())
        if now_s - moved_s < patience_s:
            if active.moved_s > self.breaker.opened_s:
                self.on(Event.PROGRESS, now_s)
            return False
        was = self.breaker.at(now_s).state
        self.on(Event.STALLED, now_s)
        return was is State.CLOSED

    def observation(self, now_s: float) -> Observation:
        """Return what the ledger should hear now."""
        breaker = self.breaker.at(now_s)
        accepts = (
            self.snapshot.state == "active"
            and self.probes.condition is Condition.UP
            and breaker.state is not State.OPEN
            and self.reading.sleeping is not True
            and not self.refused_address
            and not self.back_off.left_s(now_s)
            and self.hold is None
        )
        # Half open: a single request may try, so the ledger sees one slot.
        slots = 1 if breaker.state is State.HALF_OPEN else self.brake.slots
        return Observation(accepts, slots, self.reading.incarnation or "", self._affine())

    def _affine(self) -> bool:
        """Tell whether sessions are sent home: not to a replica that is full by its own word."""
        return not self.reading.waiting and (self.reading.kv_usage or 0.0) <= FULL_CACHE

    def fresh_reading(self, now_s: float) -> EngineReading:
        """Return the engine's numbers, all unknown when they are old."""
        fresh = self.read_s is not None and now_s - self.read_s <= STALE_S
        return self.reading if fresh else UNKNOWN

    def inside(self, now_s: float) -> int | None:
        """Return how many requests the engine says are in it, unknown when it has not said."""
        reading = self.fresh_reading(now_s)
        return None if reading.running is None else reading.running + (reading.waiting or 0)

    def is_heard(self, now: float) -> bool:
        """Tell whether the engine gave any good answer lately (Unix seconds)."""
        return self.seen_at is not None and now - self.seen_at <= STALE_S

    def state(self, now_s: float) -> str:
        """Return the one word people see (quotas.snapshots.live)."""
        condition = self.probes.condition
        unusable = (Condition.DOWN, Condition.LOADING, Condition.UNKNOWN)
        cases = (
            (bool(self.refused_address), "down"),
            (condition in unusable, str(condition)),
            (self.snapshot.state == "draining", "draining"),
            (self.reading.sleeping is True, "asleep"),
            (self.hold is not None, "measuring"),
            (self.breaker.at(now_s).state is not State.CLOSED, "suspect"),
            (self.metrics_silent or self.back_off.left_s(now_s) > 0, "busy"),
        )
        return next((word for case, word in cases if case), "up")

    def live(self, now_s: float, held: tuple[int, int] = (0, 0)) -> EngineLive:
        """Return the record for the status page; `held` = our slots, interactive and batch."""
        reading = self.fresh_reading(now_s)
        rates = Rates() if reading is UNKNOWN else self.counters.rates()
        return EngineLive(
            replica_id=self.snapshot.replica_id,
            name=self.snapshot.name,
            pool=self.snapshot.pool,
            kind=self.snapshot.kind,
            state=self.state(now_s),
            seen_at=self.seen_at,
            slots=self.brake.slots,
            held_interactive=held[0],
            held_batch=held[1],
            engine_running=reading.running,
            engine_waiting=reading.waiting,
            kv_usage=reading.kv_usage,
            prompt_tokens_total=reading.prompt_tokens_total,
            completion_tokens_total=reading.completion_tokens_total,
            prefix_hit_rate=rates.prefix_hit_rate,
            tokens_out_per_s=rates.tokens_out_per_s,
            tokens_in_per_s=rates.tokens_in_per_s,
            note=self.note(now_s),
            measured_share=None if reading is UNKNOWN else self.pace.share,
            settings_changed=self.settings_changed(),
        )

    def settings_changed(self) -> tuple[str, ...]:
        """Return the engine's settings that are not those it was measured with, by name."""
        if self.measured is None or self.facts is None:
            return ()
        books = ("card", "beside.")  # what only the books know is not compared here
        before = {n: v for n, v in self.measured.fingerprint.items() if not n.startswith(books)}
        return tuple(d.name for d in diff(before, fingerprint(self.facts, slots=self._full())))

    def note(self, now_s: float) -> str:
        """Say in plain words what is wrong, or nothing."""
        breaker = self.breaker.at(now_s)
        stalled = breaker.cause is Event.STALLED
        keyless = breaker.cause is Event.KEY_REFUSED
        cases = (
            (self.refused_address, self.refused_address),
            (
                bool(self.key_refused_on) or (breaker.state is not State.CLOSED and keyless),
                "It asks for a key of its own: enter the right one where it is registered.",
            ),
            (self.reading.sleeping is True, "The engine sleeps and would answer nobody."),
            (self.hold is not None, self.hold[1] if self.hold else ""),
            (
                breaker.state is State.HALF_OPEN and self.activity.in_flight == 0,
                f"It {'made no progress' if stalled else 'failed'}; the next request tries it.",
            ),
            (
                breaker.state is not State.CLOSED and stalled,
                "It holds requests but makes no progress; it gets no new work.",
            ),
            (
                breaker.state is not State.CLOSED,
                "Several requests in a row failed; it is tried again from time to time.",
            ),
            (
                self.metrics_silent and self.probes.condition is Condition.UP,
                "It is busy: its numbers do not answer while a long prompt is read.",
            ),
            (
                bool(self.foreign),
                f"Foreign load: {self.foreign} requests in it did not come through Fairway.",
            ),
            (
                self.brake.on,
                f"Under pressure: {self.brake.slots} of {self.brake.full} slots are used.",
            ),
        )
        first = next((text for case, text in cases if case), "")
        return " ".join(part for part in (first, self.pace.note(self.snapshot.kind)) if part)
