"""What people are told of measurements: those that come or go on, and those that were withdrawn."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from quotas.models import CapacityRun
from quotas.services.capacity import SILENT_S


def begins_at(run: CapacityRun) -> dt.datetime | None:
    """Return when a planned run begins, if it is announced for later."""
    text = run.plan.get("begins_at")
    return dt.datetime.fromisoformat(text) if text else None


@dataclass(frozen=True, slots=True)
class Announced:
    """A run that is going on or will be."""

    run: CapacityRun
    begins_at: dt.datetime
    ends_at: dt.datetime | None  # None: nobody knows before the engine was asked


def runs(*, now: dt.datetime) -> list[Announced]:
    """Return the runs that go on or are planned, and how long each is expected to take."""
    heard = now - dt.timedelta(seconds=SILENT_S)
    found = CapacityRun.objects.filter(state__in=CapacityRun.LIVE, heard_at__gte=heard)
    return [
        Announced(
            run,
            run.started_at or begins_at(run) or run.asked_at,
            run.expected_end_at or _expected_end(run),
        )
        for run in found.order_by("asked_at")
    ]


def _expected_end(run: CapacityRun) -> dt.datetime | None:
    """Return when a planned run should end: it takes as long as the same plan took last."""
    wishes = run.plan.get("wishes", {})
    ended = CapacityRun.objects.filter(
        replica=run.replica, state=CapacityRun.State.COMPLETE, started_at__isnull=False
    )
    for last in ended.order_by("-ended_at")[:20]:
        if last.plan.get("wishes", {}) == wishes and last.ended_at and last.started_at:
            return (begins_at(run) or run.asked_at) + (last.ended_at - last.started_at)
    return None


def withdrawn(*, now: dt.datetime) -> list[CapacityRun]:
    """Return the figures withdrawn in the last 30 days; they stay visible with their reason."""
    since = now - dt.timedelta(days=30)
    return list(CapacityRun.objects.filter(withdrawn_at__gte=since).order_by("-withdrawn_at"))
