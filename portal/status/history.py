"""What a pool was like: half hours of the last day, days of the last weeks."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.cache import caches
from django.db.models import Avg, Case, Count, DateTimeField, Func, IntegerField, Max, Value, When
from django.db.models.functions import TruncDate
from django.utils import timezone

from portal import charts
from quotas.models import PoolMinute

WORST_LAST = ("ok", "busy", "saturated", "overloaded", "down")
HALF_HOUR = dt.timedelta(minutes=30)
DAYS = 60  # minutes are kept two months
HELD_FOR = 30  # minutes a state must have held to be a day's state
# Heights of the state band: taller with each step, so that colour is not the only sign.
DAY_HEIGHTS = {"ok": 8, "busy": 16, "saturated": 26, "overloaded": 32, "down": 32, "unknown": 32}
NOW_FROM = 84.0  # per cent of the width from which the word now needs the room
BAND_HEIGHTS = {"ok": 6, "busy": 14, "saturated": 18, "overloaded": 22, "down": 22, "unknown": 22}


@dataclass(frozen=True, slots=True)
class Half:
    """One half hour; None is unknown."""

    start: dt.datetime
    interactive: float | None
    batch: float | None
    waiting: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Band:
    """One piece of a row of states."""

    x: float
    width: float
    y: float
    height: float
    state: str


@dataclass(frozen=True, slots=True)
class DayChart:
    """Slots held over the last 24 hours."""

    halves: tuple[Half, ...]
    bars: tuple[charts.Bar, ...]  # series 0 interactive, 1 batch, 2 unknown
    bands: tuple[Band, ...]
    levels: tuple[charts.Tick, ...]
    labels: tuple[charts.Tick, ...]

    @property
    def is_empty(self) -> bool:
        """Tell whether nobody looked at all."""
        return all(half.interactive is None for half in self.halves)


@dataclass(frozen=True, slots=True)
class DayState:
    """The worst state that held for half an hour of a day."""

    day: dt.date
    state: str


class _Bin(Func):
    """PostgreSQL's date_bin over half hours."""

    function = "date_bin"
    template = "%(function)s(interval '30 minutes', %(expressions)s, timestamptz 'epoch')"
    output_field = DateTimeField()


class _FourHours(_Bin):
    """The same over four hours."""

    template = "%(function)s(interval '4 hours', %(expressions)s, timestamptz 'epoch')"


def last_day(pool: str, now: dt.datetime) -> DayChart:
    """Return the last 24 hours of a pool in half hours; hours without a look are unknown."""
    return _read(pool, now.replace(minute=now.minute // 30 * 30, second=0, microsecond=0), _Bin)


def last_week(pool: str, now: dt.datetime) -> DayChart:
    """Return the last seven days of a pool in pieces of four hours."""
    seconds = now.timestamp()
    last = dt.datetime.fromtimestamp(seconds - seconds % (4 * 3600), dt.UTC)
    return _read(pool, last, _FourHours, dt.timedelta(hours=4), 42)


def _read(
    pool: str,
    last: dt.datetime,
    bin_of: type[_Bin],
    step: dt.timedelta = HALF_HOUR,
    count: int = 48,
) -> DayChart:
    """Return so many pieces of time, the last of which begins at `last`."""
    end = last + step
    start = end - count * step
    rank = Case(
        *(When(verdict=word, then=Value(place)) for place, word in enumerate(WORST_LAST)),
        default=Value(-1),
        output_field=IntegerField(),
    )
    rows: Any = (
        PoolMinute.objects.filter(pool=pool, minute__gte=start, minute__lt=end)
        .annotate(half=bin_of("minute"))
        .values("half")
        .annotate(
            interactive=Avg("held_interactive"),
            batch=Avg("held_batch"),
            waiting_now=Avg("waiting_interactive"),
            slots_now=Avg("slots"),
            worst=Max(rank),
        )
    )
    found = {row["half"]: row for row in rows}
    halves = [_half(start + step * n, found.get(start + step * n)) for n in range(count)]
    slots = max((row["slots_now"] or 0 for row in found.values()), default=0)
    return chart(halves, slots)


def _half(start: dt.datetime, row: dict[str, Any] | None) -> Half:
    if row is None:
        return Half(start, None, None, None, "unknown")
    worst = row["worst"]
    state = WORST_LAST[worst] if isinstance(worst, int) and worst >= 0 else "unknown"
    return Half(start, row["interactive"], row["batch"], row["waiting_now"], state)


def chart(halves: list[Half], slots: float) -> DayChart:
    """Return the drawing of 48 half hours on a scale of the pool's slots."""
    top = max(slots, 1.0)
    base, ceiling = 120.0, 8.0
    per_slot = (base - ceiling) / top
    pitch = 100 / len(halves)
    bars: list[charts.Bar] = []
    bands: list[Band] = []
    for number, half in enumerate(halves):
        x, width = round(pitch * (number + 0.07), 2), round(pitch * 0.86, 2)
        if half.interactive is None or half.batch is None:
            bars.append(charts.Bar(x, width, ceiling, base - ceiling, 2))
        else:
            floor = base
            for series, value in enumerate((half.interactive, half.batch)):
                height = round(value * per_slot, 1)
                if height >= 0.5:
                    bars.append(charts.Bar(x, width, round(floor - height, 1), height, series))
                    floor -= height
        tall = BAND_HEIGHTS[half.state]
        bands.append(Band(round(pitch * number, 2), round(pitch + 0.05, 2), 160 - tall, tall,
                          half.state))  # fmt: skip
    levels = tuple(
        charts.Tick(round(base - n * per_slot, 1), f"{n:g}")
        for n in sorted({0.0, round(top / 2), top})
    )
    return DayChart(tuple(halves), tuple(bars), tuple(bands), levels, _labels(halves, pitch))


def _labels(halves: list[Half], pitch: float) -> tuple[charts.Tick, ...]:
    """Return every sixth hour of a day, or the days of a week."""
    starts = [timezone.localtime(half.start) for half in halves]
    if len(starts) > 1 and starts[1] - starts[0] > HALF_HOUR:
        found = [(n, f"{at:%a}") for n, at in enumerate(starts) if at.hour < 4]
    else:
        found = [
            (n, f"{at:%H:%M}") for n, at in enumerate(starts) if at.minute == 0 and at.hour % 6 == 0
        ]
    ticks = (charts.Tick(round(pitch * (n + 0.5), 2), text) for n, text in found)
    return tuple(tick for tick in ticks if tick.place < NOW_FROM)


def days(pool: str, now: dt.datetime) -> list[DayState]:
    """Return the state of each of the last days; counted once a minute, not for each page."""
    name = f"days:{pool}:{int(now.timestamp() // 60)}"
    kept: list[DayState] | None = caches["process"].get(name)
    if kept is None:
        kept = _count_days(pool, now)
        caches["process"].set(name, kept, 120)
    return kept


def _count_days(pool: str, now: dt.datetime) -> list[DayState]:
    zone = ZoneInfo(settings.TIME_ZONE)
    today = now.astimezone(zone).date()
    first = today - dt.timedelta(days=DAYS - 1)
    rows = (
        PoolMinute.objects.filter(pool=pool, minute__gte=now - dt.timedelta(days=DAYS + 1))
        .annotate(day=TruncDate("minute", tzinfo=zone))
        .values_list("day", "verdict")
        .annotate(minutes=Count("pk"))
    )
    by_day: dict[dt.date, dict[str, int]] = {}
    for day, verdict, minutes in rows:
        by_day.setdefault(day, {})[verdict] = minutes
    wanted = [first + dt.timedelta(days=n) for n in range(DAYS)]
    return [DayState(day, state_of_day(by_day.get(day, {}))) for day in wanted]


def state_of_day(minutes: dict[str, int]) -> str:
    """Return the worst state that held for half an hour; too few looks make a day unknown."""
    known = {word: count for word, count in minutes.items() if word in WORST_LAST}
    held = [word for word in WORST_LAST if known.get(word, 0) >= HELD_FOR]
    if held:
        return held[-1]
    return (
        max(known, key=lambda word: known[word]) if sum(known.values()) >= HELD_FOR else "unknown"
    )


def day_bands(found: list[DayState]) -> list[Band]:
    """Return the row of days; unknown days are dashed and tall."""
    pitch = 100 / max(len(found), 1)
    return [
        Band(round(pitch * n, 2), round(pitch * 0.78, 2), 40 - DAY_HEIGHTS[one.state],
             DAY_HEIGHTS[one.state], one.state)
        for n, one in enumerate(found)
    ]  # fmt: skip
