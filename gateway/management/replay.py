"""Reads what really came out of the books, to be played again under another policy.

Rule 1: never what was asked, only who asked when, how long it ran and how much it was.
Rule 2: the lines of a batch are a job that the runner feeds, for how fast they came follows from
the policy. What was refused at the door never waited or ran, so it is not among the requests.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from django.core.management.base import CommandError
from django.db.models import Count, Sum
from django.utils import timezone

from gateway.core.types import ServiceClass
from gateway.ledger.scenarios import SLOTS
from gateway.ledger.simulation import Policy
from gateway.ledger.state import BATCH
from gateway.ledger.trace import Arrival, Backlog
from quotas.models import Pool, UsageEvent

COLUMNS = (
    "arrived_at", "user_id", "service_class", "duration_ms", "queue_wait_ms", "ttft_ms",
    "prompt_tokens", "cached_tokens", "completion_tokens", "batch_id", "replica_id",
)  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """What came in so many days for one model."""

    model: str
    seconds: float
    arrivals: list[Arrival]
    backlogs: list[Backlog]

    @property
    def requests(self) -> int:
        """Return how many requests it is of."""
        return len(self.arrivals) + sum(len(job.lines) for job in self.backlogs)


def trace(days: int, model: str | None) -> Trace:
    """Return what came in the last days; with several models somebody must choose."""
    model = model or _only_model(days)
    since = _since(days)
    rows = list(_events(since).filter(model=model).order_by("arrived_at").values(*COLUMNS))
    if not rows:
        asked = ", ".join(models(days)) or "none at all"
        raise CommandError(
            f"Nobody asked for {model} in the last {days} days (asked for: {asked}). "
            "Give more --days or another --model."
        )
    usual_ms = _usual_ms(rows)
    arrivals: list[Arrival] = []
    jobs: dict[tuple[str, str], list[Arrival]] = {}
    for row in rows:
        one = _arrival(row, since, usual_ms)
        if row["batch_id"] and one.service_class is BATCH:
            jobs.setdefault((row["batch_id"], one.user), []).append(one)
        else:
            arrivals.append(one)
    backlogs = [Backlog(user, tuple(lines), lines[0].at_ms) for (_, user), lines in jobs.items()]
    return Trace(model, days * 86_400.0, arrivals, backlogs)


def policy_of(model: str) -> Policy:
    """Return how a model is shared now, by the books; the defaults where nothing is set."""
    pool = Pool.objects.filter(name=model).first()
    if pool is None:
        return Policy(slots=SLOTS)
    up = pool.replicas.filter(state="active").aggregate(n=Sum("slots"), read=Sum("prefill_budget"))
    return Policy(
        slots=up["n"] or SLOTS,
        prefill_budget=up["read"] or Policy().prefill_budget,
        batch_slots=pool.batch_slots,
        batch_slots_idle=pool.batch_slots_idle,
        batch_idle_after_s=pool.batch_idle_after_s,
    )


def models(days: int) -> list[str]:
    """Return the models somebody used, the most used first."""
    counted = _events(_since(days)).values("model").annotate(n=Count("request_id")).order_by("-n")
    return [row["model"] for row in counted]


def _since(days: int) -> dt.datetime:
    return timezone.now() - dt.timedelta(days=days)


def _events(since: dt.datetime) -> Any:
    return UsageEvent.objects.filter(arrived_at__gte=since, queue_wait_ms__isnull=False)


def _only_model(days: int) -> str:
    found = models(days)
    if not found:
        raise CommandError(
            f"There are no requests in the last {days} days to play again: give more --days."
        )
    if len(found) > 1:
        raise CommandError(f"Several models were used: choose one with --model: {', '.join(found)}")
    return found[0]


def _ran_ms(row: Row) -> int:
    return max(1, int(row["duration_ms"]) - int(row["queue_wait_ms"]))


def _usual_ms(rows: Iterable[Row]) -> dict[str, int]:
    """Return by class how long half of those that ran held their slot."""
    held: dict[str, list[int]] = {}
    for row in rows:
        if row["replica_id"]:
            held.setdefault(row["service_class"], []).append(_ran_ms(row))
    return {name: round(median(found)) for name, found in held.items()}


def _arrival(row: Row, since: dt.datetime, usual_ms: dict[str, int]) -> Arrival:
    # What left the queue unserved would have held a slot for as long as others do.
    ran_ms = _ran_ms(row)
    if not row["replica_id"]:
        ran_ms = usual_ms.get(row["service_class"], ran_ms)
    read_ms = None
    if row["ttft_ms"] is not None:
        read_ms = max(0, row["ttft_ms"] - row["queue_wait_ms"])
    return Arrival(
        at_ms=round((row["arrived_at"] - since).total_seconds() * 1000),
        user=str(row["user_id"]),
        service_class=ServiceClass(row["service_class"]),
        service_ms=ran_ms,
        prompt_tokens=max(0, row["prompt_tokens"] - (row["cached_tokens"] or 0)),
        output_tokens=row["completion_tokens"],
        read_ms=read_ms,
    )
