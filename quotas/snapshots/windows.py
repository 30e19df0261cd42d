"""The windows limits are counted in: pure arithmetic, the same on the page and at the gate.

A *day* or *month* is one of the calendar of the reporting time zone: it begins at the first
instant of the local date, so a day has 23, 24 or 25 hours and none is skipped or counted twice.

A *minute* is a leaky bucket in whole numbers, kept by the ledger (gateway/ledger/quota.py): a full
minute's worth may come at once, and room comes back steadily. Its level is kept in units of (one
of what is counted) x (one millisecond): each costs `period_ms`, and `limit` of the level leaks
away each millisecond. Nothing is ever rounded, Lua's doubles hold it exactly while limit x period
stays below 2**53, and a level keeps its meaning when the limit is changed.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE_MS = 60_000
# Largest limit per minute whose level a double holds exactly.
LARGEST_PER_MINUTE = 2**53 // MINUTE_MS // 2


@dataclass(frozen=True, slots=True)
class Window:
    """One calendar window; `start` is inside, `end` is the first instant of the next."""

    name: str  # 2026-11-20 or 2026-11: part of a counter's name
    start: dt.datetime  # UTC
    end: dt.datetime

    @property
    def start_ms(self) -> int:
        """Return the first millisecond inside, since 1970."""
        return int(self.start.timestamp()) * 1000

    @property
    def end_ms(self) -> int:
        """Return the first millisecond of the next window: the reset that is shown."""
        return int(self.end.timestamp()) * 1000


@lru_cache(maxsize=8)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def start_of(date: dt.date, zone: str) -> dt.datetime:
    """Return the first instant of a local date, in UTC.

    Where clocks are put forward over midnight the date begins at the jump; where they are put
    back over it, at the first of the two midnights.
    """
    return dt.datetime.combine(date, dt.time(), tzinfo=_zone(zone)).astimezone(dt.UTC)


def local_date(at: dt.datetime, zone: str) -> dt.date:
    """Return the date of an instant in the zone."""
    return at.astimezone(_zone(zone)).date()


def day(at: dt.datetime, zone: str) -> Window:
    """Return the local day that holds the instant."""
    date = local_date(at, zone)
    return Window(
        date.isoformat(), start_of(date, zone), start_of(date + dt.timedelta(days=1), zone)
    )


def month(at: dt.datetime, zone: str) -> Window:
    """Return the local calendar month that holds the instant."""
    first = local_date(at, zone).replace(day=1)
    after = (first + dt.timedelta(days=32)).replace(day=1)
    return Window(f"{first:%Y-%m}", start_of(first, zone), start_of(after, zone))


def window(kind: str, at: dt.datetime, zone: str) -> Window:
    """Return the window of a limit whose `window` is day or month."""
    return {"day": day, "month": month}[kind](at, zone)
