"""The fairness report, kept: it reads single requests, seconds of work and the same for everybody.

A page shows the report that is there, with its age, and has a fresh one made by a worker when it
is old. Only the first reader after an installation or an emptied cache waits for it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass
from typing import cast

from django.core.cache import cache
from django.utils import timezone
from kombu.exceptions import OperationalError

from portal import tasks
from quotas import fairness
from quotas.fairness import Fairness
from quotas.reports import Period

FRESH = dt.timedelta(minutes=5)
KEPT_S = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Kept:
    """A report and when it was made."""

    made_at: dt.datetime
    report: Fairness


def of_days(days: int) -> Kept:
    """Return the report of the last days, and ask for a new one when it is not fresh."""
    kept = cast("Kept | None", cache.get(_name(days)))
    if kept is None:
        return refresh(days)
    is_old = timezone.now() - kept.made_at > FRESH
    if is_old and cache.add(f"{_name(days)}:asked", 1, FRESH.total_seconds()):
        with contextlib.suppress(OperationalError):  # the next page asks again
            tasks.refresh_fairness.delay(days)
    return kept


def refresh(days: int) -> Kept:
    """Make the report anew."""
    now = timezone.now()
    kept = Kept(now, fairness.of_period(Period.last_days(days, now=now)))
    cache.set(_name(days), kept, KEPT_S)
    return kept


def _name(days: int) -> str:
    return f"fairness-kept:{days}"
