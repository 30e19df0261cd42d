"""What Prometheus can read of this process. Labels come from closed lists only."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway.core.types import Outcome

WAIT_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
TTFT_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)


class Spread:
    """Counts observations by bucket, in plain numbers."""

    __slots__ = ("_bounds", "_child", "_counts", "_sum")

    def __init__(self, child: Histogram, bounds: tuple[float, ...]) -> None:
        self._child = child
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def flush(self) -> None:
        """Add what was counted to what Prometheus reads."""
        # The library offers no way to add many at once; its buckets are counters like any other.
        child: Any = self._child
        for number, count in enumerate(self._counts):
            if count:
                child._buckets[number].inc(count)
                self._counts[number] = 0
        child._sum.inc(self._sum)
        self._sum = 0.0


class PoolMetrics:
    """What is counted of one pool and class.

    In plain numbers, which twice a second and before each reading go where Prometheus looks: its
    library takes a lock for each increment, and a request makes ten.
    """

    __slots__ = ("_children", "_counts", "cached", "completion", "ended", "prompt", "queue_wait",
                 "ttft")  # fmt: skip

    def __init__(self, metrics: Metrics, pool: str, service_class: str) -> None:
        self.ended = dict.fromkeys(Outcome, 0)
        self.prompt = self.cached = self.completion = 0
        self.queue_wait = Spread(metrics.queue_wait.labels(pool, service_class), WAIT_S)
        self.ttft = Spread(metrics.ttft.labels(pool, service_class), TTFT_S)
        self._children = {
            outcome: metrics.requests.labels(pool, service_class, outcome.value)
            for outcome in Outcome
        }
        self._counts = {
            kind: metrics.tokens.labels(pool, service_class, kind)
            for kind in ("prompt", "cached", "completion")
        }

    def flush(self) -> None:
        """Add what was counted to what Prometheus reads."""
        for outcome, count in self.ended.items():
            if count:
                self._children[outcome].inc(count)
                self.ended[outcome] = 0
        for kind, child in self._counts.items():
            child.inc(getattr(self, kind))
            setattr(self, kind, 0)
        self.queue_wait.flush()
        self.ttft.flush()


class Metrics:
    """All metrics of the gateway; children are looked up once per pool and class."""

    def __init__(self, shared_dir: str = "") -> None:
        registry = self.registry = CollectorRegistry()
        self._shared_dir = shared_dir
        self.collectors: list[Collector] = []
        self._pools: dict[tuple[str, str], PoolMetrics] = {}
        self.requests = Counter(
            "fairway_requests", "Requests that ended, by how they ended.",
            ("pool", "service_class", "outcome"), registry=registry,
        )  # fmt: skip
        self.rejected = Counter(
            "fairway_rejected", "Requests turned away at the door, by code.", ("code",),
            registry=registry,
        )  # fmt: skip
        self.tokens = Counter(
            "fairway_tokens", "Tokens, by kind: prompt (cached ones included), cached, completion.",
            ("pool", "service_class", "kind"), registry=registry,
        )  # fmt: skip
        self.queue_wait = Histogram(
            "fairway_queue_wait_seconds", "Arrival to start, in ledger time.",
            ("pool", "service_class"), buckets=WAIT_S, registry=registry,
        )  # fmt: skip
        self.ttft = Histogram(
            "fairway_ttft_seconds", "Arrival to first content, queue wait included.",
            ("pool", "service_class"), buckets=TTFT_S, registry=registry,
        )  # fmt: skip
        self._add_process_metrics(registry)

    def _add_process_metrics(self, registry: CollectorRegistry) -> None:
        """Add what tells of the process and not of a pool."""
        self.retries = Counter(
            "fairway_retries", "Requests sent to a second replica.", registry=registry
        )
        self.put_back = Counter(
            "fairway_put_back", "Grants the engine would not take (429 or 503).", registry=registry
        )
        self.resent = Counter(
            "fairway_resent", "Requests sent again because a kept connection had died.",
            registry=registry,
        )  # fmt: skip
        self.live = Gauge(
            "fairway_live_requests", "Requests this process serves now.", registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.buffered = Gauge(
            "fairway_buffered_bytes", "Bytes held for slow clients.", registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self.outbox = Gauge(
            "fairway_usage_waiting", "Usage records not yet known to be in the books.",
            registry=registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self.usage_lost = Counter(
            "fairway_usage_lost", "Usage records given up because Redis was away too long.",
            registry=registry,
        )  # fmt: skip
        self.directory_age = Gauge(
            "fairway_directory_age_seconds", "Since the directory was last read.",
            registry=registry, multiprocess_mode="livemax",
        )  # fmt: skip

    def of(self, pool: str, service_class: str) -> PoolMetrics:
        """Return the children of a pool and class; both come from the books, so they are few."""
        found = self._pools.get((pool, service_class))
        if found is None:
            found = self._pools[pool, service_class] = PoolMetrics(self, pool, service_class)
        return found

    def flush(self) -> None:
        """Bring what was counted where Prometheus looks."""
        for counted in self._pools.values():
            counted.flush()

    def page(self) -> bytes:
        """Write the page; with several processes, over all of them."""
        registry = CollectorRegistry()
        if self._shared_dir:
            MultiProcessCollector(registry, self._shared_dir)  # type: ignore[no-untyped-call]
        else:
            registry.register(self.registry)
        # These speak of the installation, not of a process: whoever is asked tells the same.
        for collector in self.collectors:
            registry.register(collector)
        return generate_latest(registry)
