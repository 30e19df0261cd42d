"""Engines, queue and verdicts as Prometheus sees them, made at each scrape from what is known.

Made at scrape time because a replica may be removed and a number may become unknown: what is
unknown is not on the page, instead of standing there with its last value. Labels come from the
books only: engines, pools, classes and closed lists of words, never keys or people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core.types import Blocker
from gateway.core.verdict import Word
from gateway.fleet.prober import Fleet
from gateway.fleet.replica import Replica
from gateway.fleet.watcher import Watcher
from quotas.snapshots.exports import GAUGES

ENGINE = ("engine", "pool")
POOL = ("pool", "service_class")
STATES = (
    "up", "loading", "busy", "suspect", "down", "draining", "asleep", "measuring", "unknown",
)  # fmt: skip


class FleetCollector(Collector):
    """Yields what this process knows of the fleet."""

    def __init__(self, fleet: Fleet, watcher: Watcher) -> None:
        self._fleet = fleet
        self._watcher = watcher

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the fleet."""
        replicas = tuple(self._fleet.replicas())
        yield from self._states(replicas)
        yield from _numbers(replicas, self._fleet.now_s())
        yield from self._waiting()
        yield from self._verdicts()
        yield from self._books()
        yield GaugeMetricFamily(
            "fairway_ledger_mismatch",
            "Counts of the ledger that differed from a recount of its entries; must be 0.",
            float(len(self._fleet.ledger.mismatches)),
        )

    def _states(self, replicas: Iterable[Replica]) -> Iterator[Metric]:
        up = GaugeMetricFamily("fairway_engine_up", "1 while it takes work.", labels=ENGINE)
        state = GaugeMetricFamily(
            "fairway_engine_state", "1 for the state it is in.", labels=(*ENGINE, "state")
        )
        now_s = self._fleet.now_s()
        for replica in replicas:
            labels = _labels(replica)
            up.add_metric(labels, float(replica.observation(now_s).accepts))
            word = replica.state(now_s)
            for name in STATES:
                state.add_metric([*labels, name], float(name == word))
        yield up
        yield state

    def _waiting(self) -> Iterator[Metric]:
        """Yield the queue and what it waited for, as the process that looks saw it."""
        waited = CounterMetricFamily(
            "fairway_waited_seconds", "Seconds that requests waited, by what for.",
            labels=(*POOL, "blocker"),
        )  # fmt: skip
        for pool, by_class in self._watcher.waited_s.items():
            for service_class, blockers in by_class.items():
                for blocker in Blocker:
                    seconds = blockers.get(blocker.value, 0.0)
                    waited.add_metric([pool, service_class, blocker.value], seconds)
        yield waited
        families = {
            "held": GaugeMetricFamily("fairway_slots_held", "Slots held.", labels=POOL),
            "waiting": GaugeMetricFamily(
                "fairway_num_requests_waiting", "Requests waiting for a slot.", labels=POOL
            ),
            "running": GaugeMetricFamily(
                "fairway_num_requests_running", "Requests in flight.", labels=POOL
            ),
            "oldest_s": GaugeMetricFamily(
                "fairway_oldest_wait_seconds", "Wait of the oldest in the queue.", labels=POOL
            ),
            "expected_wait_s": GaugeMetricFamily(
                "fairway_expected_wait_seconds", "Expected wait of a newcomer.", labels=POOL
            ),
        }
        for pool, classes in self._watcher.current_queue().items():
            for service_class, told in classes.items():
                for name, family in families.items():
                    if (value := told.get(name)) is not None:
                        family.add_metric([pool, service_class], value)
        yield from families.values()

    def _verdicts(self) -> Iterator[Metric]:
        verdict = GaugeMetricFamily(
            "fairway_verdict", "1 for the word that holds.", labels=(*POOL, "word")
        )
        ratio = GaugeMetricFamily(
            "fairway_waiting_per_running", "Waiting for want of capacity, per running.", labels=POOL
        )
        for found in self._watcher.current():
            for word in Word:
                value = float(word.value == found.word)
                verdict.add_metric([found.pool, found.service_class, word.value], value)
            if found.ratio is not None:
                ratio.add_metric([found.pool, found.service_class], found.ratio)
        yield verdict
        yield ratio

    def _books(self) -> Iterator[Metric]:
        """Yield what the books told; nothing when they have not been heard lately."""
        names = {gauge.name: tuple(gauge.labels) for gauge in self._watcher.books}
        for name, labels in names.items():
            family = GaugeMetricFamily(name, GAUGES[name], labels=labels)
            for gauge in self._watcher.books:
                if gauge.name == name and tuple(gauge.labels) == labels:
                    family.add_metric(list(gauge.labels.values()), gauge.value)
            yield family


def _labels(replica: Replica) -> list[str]:
    return [replica.snapshot.name, replica.snapshot.pool]


def _numbers(replicas: Iterable[Replica], now_s: float) -> Iterator[Metric]:
    """Yield the engines' own numbers under our names and labels."""
    gauges = {
        "engine_running": ("fairway_engine_num_requests_running", "Running, by its own word."),
        "engine_waiting": ("fairway_engine_num_requests_waiting", "Waiting, by its own word."),
        "kv_usage": ("fairway_engine_kv_usage_ratio", "Part of the KV cache in use."),
        "slots": ("fairway_engine_slots", "Slots in force."),
        "seen_at": ("fairway_engine_seen_timestamp_seconds", "Last good answer."),
    }
    counters = {
        "prompt_tokens_total": ("fairway_engine_prompt_tokens", "Read, cached ones included."),
        "completion_tokens_total": ("fairway_engine_completion_tokens", "Written."),
        "prefix_queries_total": ("fairway_engine_prefix_queries_tokens", "Looked up in the cache."),
        "prefix_hits_total": ("fairway_engine_prefix_hits_tokens", "Found in the cache."),
        "preemptions_total": ("fairway_engine_preemptions", "Preempted for want of cache."),
    }
    for name, (metric, text) in gauges.items():
        family = GaugeMetricFamily(metric, text, labels=ENGINE)
        for replica in replicas:
            _add(family, replica, getattr(replica.live(now_s), name))
        yield family
    for name, (metric, text) in counters.items():
        total = CounterMetricFamily(metric, text, labels=ENGINE)
        for replica in replicas:
            _add(total, replica, getattr(replica.fresh_reading(now_s), name))
        yield total
    yield from _watchdogs(replicas)


def _watchdogs(replicas: Iterable[Replica]) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        "fairway_engine_restarts", "Restarts seen by this process.", labels=ENGINE
    )
    foreign = GaugeMetricFamily(
        "fairway_engine_foreign_requests", "In it and not through us.", labels=ENGINE
    )
    share = GaugeMetricFamily(
        "fairway_engine_measured_speed_ratio", "Its speed as a part of what was measured.",
        labels=ENGINE,
    )  # fmt: skip
    for replica in replicas:
        _add(restarts, replica, replica.counters.restarts)
        _add(foreign, replica, replica.foreign or 0)
        _add(share, replica, replica.pace.share)
    yield from (restarts, foreign, share)


def _add(
    family: GaugeMetricFamily | CounterMetricFamily, replica: Replica, value: float | None
) -> None:
    if value is not None:
        family.add_metric(_labels(replica), float(value))
