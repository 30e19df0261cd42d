"""When a weekly reservation takes place, and what is taken at once; pure.

An occurrence keeps its time of day in the reporting zone: a course at ten stays at ten when the
clocks change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

WEEK = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One stretch of time, its end not included."""

    starts_at: dt.datetime
    ends_at: dt.datetime

    def meets(self, other: Occurrence) -> bool:
        """Tell whether the two have an instant in common."""
        return self.starts_at < other.ends_at and other.starts_at < self.ends_at


def occurrences(
    starts_at: dt.datetime, ends_at: dt.datetime, weeks: int, zone: str
) -> list[Occurrence]:
    """Return the stretch and its repeats of the following weeks, `weeks` in all."""
    return [
        Occurrence(_later(starts_at, number, zone), _later(ends_at, number, zone))
        for number in range(weeks)
    ]


def _later(moment: dt.datetime, weeks: int, zone: str) -> dt.datetime:
    """Return the same time of day some weeks on, by the zone's calendar."""
    # Arithmetic on a zone's own time moves the wall clock; the round trip by UTC names the instant.
    local = moment.astimezone(ZoneInfo(zone)) + weeks * WEEK
    return local.astimezone(dt.UTC)


def present(found: Iterable[Occurrence], now: dt.datetime) -> Occurrence | None:
    """Return the occurrence that runs, or else the next one; None: all are over."""
    return next((one for one in found if one.ends_at > now), None)


def busiest(
    wanted: Occurrence, taken: Sequence[tuple[Occurrence, int]]
) -> tuple[dt.datetime, int, list[int]]:
    """Return the instant of `wanted` at which most is taken: when, how much, by which of `taken`.

    The sum only grows where something begins, so those instants are all there are to look at.
    """
    meeting = [(at, one, slots) for at, (one, slots) in enumerate(taken) if one.meets(wanted)]
    best: tuple[dt.datetime, int, list[int]] = (wanted.starts_at, 0, [])
    for moment in [wanted.starts_at, *(one.starts_at for _, one, _ in meeting)]:
        if not wanted.starts_at <= moment < wanted.ends_at:
            continue
        here = [(at, slots) for at, one, slots in meeting if one.starts_at <= moment < one.ends_at]
        total = sum(slots for _, slots in here)
        if total > best[1]:
            best = (moment, total, [at for at, _ in here])
    return best
