"""What the gateway tells the portal about this moment: JSON of `GET /internal/live`.

Unknown is None, never 0. Every part carries the time it was true (Unix seconds).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineLive:
    """One replica as the prober last saw it."""

    replica_id: str
    name: str
    pool: str
    kind: str
    state: str  # up, loading, busy, suspect, down, draining, asleep, unknown
    seen_at: float | None  # last good answer of the engine
    slots: int
    held_interactive: int  # slots held by us
    held_batch: int
    engine_running: int | None  # the engine's own numbers
    engine_waiting: int | None
    kv_usage: float | None  # 0..1
    prompt_tokens_total: int | None
    completion_tokens_total: int | None
    prefix_hit_rate: float | None
    tokens_out_per_s: float | None
    tokens_in_per_s: float | None
    note: str = ""  # plain words when something is wrong
    measured_share: float | None = None  # its speed as a part of what was measured; not judged
    settings_changed: tuple[str, ...] = ()  # settings that differ from those it was measured with


@dataclass(frozen=True, slots=True)
class QueuedLive:
    """One waiting ticket."""

    ticket_id: str
    key_id: str
    user_id: str
    service_class: str
    pool: str
    position: int
    queued_s: float
    effective_priority_s: float
    blocker: str
    expected_wait_s: float | None


@dataclass(frozen=True, slots=True)
class RunningLive:
    """One ticket in flight."""

    ticket_id: str
    key_id: str
    user_id: str
    service_class: str
    pool: str
    replica_id: str
    weight: int
    running_s: float


@dataclass(frozen=True, slots=True)
class VerdictLive:
    """How full a pool is, for one class; judged over up to two hours (docs/scheduler.md)."""

    pool: str
    service_class: str
    word: str  # ok, busy, saturated, overloaded, down, unknown
    since: float  # Unix seconds
    cause: str | None  # the blocker most of the waiting is for
    ratio: float | None  # waiting for want of capacity, per running


@dataclass(frozen=True, slots=True)
class Live:
    """Everything, read at one moment."""

    at: float
    open: bool
    engines: tuple[EngineLive, ...]
    queued: tuple[QueuedLive, ...]
    running: tuple[RunningLive, ...]
    expected_wait_s: dict[str, dict[str, float | None]]  # pool -> class -> wait of a newcomer
    batch_limit: dict[str, int]
    borrowed: dict[str, bool]
    ledger: str  # "ok" or why not
    verdicts: tuple[VerdictLive, ...] = ()  # empty: unknown
    # pool -> class -> blocker -> seconds waited since Redis was filled; only ever grows
    waited_s: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    # False: the scheduler's store is away; who runs, who waits and for how long is unknown then.
    queue_known: bool = True
    queue_at: float | None = None  # when that was last known
    worker_at: float | None = (
        None  # when the Celery worker last reported, or nobody listened before
    )
