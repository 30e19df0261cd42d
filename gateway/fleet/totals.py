"""What a pool is like at one moment, summed over its replicas; what nobody told is None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gateway.core.types import LedgerView, ServiceClass
from gateway.fleet.rates import WINDOW_S
from gateway.fleet.replica import Replica
from quotas.snapshots.live import EngineLive

USABLE = frozenset({"up", "busy"})


def pool_now(
    pool: str,
    view: LedgerView,
    replicas: Sequence[Replica],
    outlook: Mapping[str, int | None],
    now_s: float,
) -> dict[str, float | None]:
    """Return the pool's numbers under the names of the minutes (quotas.snapshots.measured)."""
    engines = [replica.live(now_s) for replica in replicas]
    usable = [engine for engine in engines if engine.state in USABLE]
    found: dict[str, float | None] = {
        "slots": sum(engine.slots for engine in usable) if usable else None,
        "kv_usage": _most(engine.kv_usage for engine in usable),
        "tokens_in_per_s": _sum(usable, "tokens_in_per_s"),
        "tokens_out_per_s": _sum(usable, "tokens_out_per_s"),
        "preemptions_per_s": _preemptions(replicas),
    }
    for service_class in ServiceClass:
        name = service_class.value
        queue = queue_now(pool, service_class, view, outlook.get(name))
        found[f"held_{name}"] = queue["held"]
        found[f"waiting_{name}"] = queue["waiting"]
        found[f"expected_wait_{name}_s"] = queue["expected_wait_s"]
    return found


def queue_now(
    pool: str, service_class: ServiceClass, view: LedgerView, wait_ms: int | None
) -> dict[str, float | None]:
    """Return one class's part of a pool: what runs, waits and is held, and how long for."""
    running = [h for h in view.running if h.pool == pool and h.service_class is service_class]
    queued = [q for q in view.queued if q.pool == pool and q.service_class is service_class]
    return {
        "running": len(running),
        "held": sum(holding.weight for holding in running),
        "waiting": len(queued),
        "oldest_s": max((q.queued_ms for q in queued), default=0) / 1000,
        "expected_wait_s": None if wait_ms is None else wait_ms / 1000,
    }


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum(engines: Sequence[EngineLive], name: str) -> float | None:
    values = [getattr(engine, name) for engine in engines]
    return sum(values) if values and None not in values else None


def _preemptions(replicas: Sequence[Replica]) -> float | None:
    """Return preemptions per second over the window of the rates."""
    known = [replica.counters.rates().preemptions for replica in replicas]
    counts = [count for count in known if count is not None]
    return sum(counts) / WINDOW_S if counts else None
