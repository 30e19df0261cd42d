"""When is it quiet: the usual expected wait by hour of the week, and what real traffic reached."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.cache import caches
from django.db.models import Avg, Count
from django.db.models.functions import ExtractHour, ExtractIsoWeekDay, TruncHour

from portal.charts import Tick
from portal.status.history import Band
from quotas.models import PoolMinute

WEEKS = 4
LEAST_MINUTES = 10  # fewer looks in four weeks say nothing about an hour
KEPT_S = 600
DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
ROW, TALLEST = 28, 22.0
FULL_S = 120.0  # a wait this long fills its cell; the scale is logarithmic


@dataclass(frozen=True, slots=True)
class Week:
    """Mean expected wait of a new chat message by day and hour; None is unknown."""

    waits: tuple[tuple[float | None, ...], ...]  # 7 days of 24 hours

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is known of any hour."""
        return all(wait is None for day in self.waits for wait in day)

    @property
    def bands(self) -> tuple[Band, ...]:
        """Return the drawing: a bar for each hour, taller for a longer wait."""
        return tuple(
            _cell(day, hour, wait)
            for day, hours in enumerate(self.waits)
            for hour, wait in enumerate(hours)
        )

    @property
    def days(self) -> tuple[Tick, ...]:
        """Return the names of the rows and where their ground lines are."""
        return tuple(Tick(ROW * (n + 1), name) for n, name in enumerate(DAY_NAMES))

    @property
    def hours(self) -> tuple[Tick, ...]:
        """Return the hours written below."""
        return tuple(Tick(round(100 * hour / 24, 2), f"{hour:02}") for hour in range(0, 24, 6))

    @property
    def rows(self) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
        """Return the same as a table: six parts of four hours a day."""
        parts = [[_mean(day[n : n + 4]) for n in range(0, 24, 4)] for day in self.waits]
        return tuple((name, tuple(part)) for name, part in zip(DAY_NAMES, parts, strict=True))


def _cell(day: int, hour: int, wait: float | None) -> Band:
    x, width, floor = round(100 * hour / 24 + 0.25, 2), 3.6, ROW * (day + 1)
    if wait is None:
        return Band(x, width, floor - TALLEST, TALLEST, "unknown")
    part = min(1.0, math.log1p(max(0.0, wait)) / math.log1p(FULL_S))
    height = round(max(1.0, TALLEST * part), 1)
    return Band(x, width, round(floor - height, 1), height, "known")


def _mean(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def usual(pool: str, now: dt.datetime) -> Week:
    """Return the usual week of a pool from its last four; read anew every ten minutes."""
    name = f"week:{pool}:{int(now.timestamp() // KEPT_S)}"
    kept: Week | None = caches["process"].get(name)
    if kept is None:
        kept = _read(pool, now)
        caches["process"].set(name, kept, KEPT_S)
    return kept


def _read(pool: str, now: dt.datetime) -> Week:
    zone = ZoneInfo(settings.TIME_ZONE)
    rows: Any = (
        PoolMinute.objects.filter(pool=pool, minute__gte=now - dt.timedelta(weeks=WEEKS))
        .exclude(expected_wait_interactive_s__isnull=True)
        .annotate(
            day=ExtractIsoWeekDay("minute", tzinfo=zone), hour=ExtractHour("minute", tzinfo=zone)
        )
        .values_list("day", "hour")
        .annotate(wait=Avg("expected_wait_interactive_s"), minutes=Count("pk"))
        .filter(minutes__gte=LEAST_MINUTES)
    )  # fmt: skip
    found = {(day, hour): wait for day, hour, wait, _ in rows}
    return Week(tuple(tuple(found.get((day, hour)) for hour in range(24)) for day in range(1, 8)))


def reached(pool: str, now: dt.datetime) -> float | None:
    """Return the tokens per second written in the busiest hour of the last week, or unknown."""
    hours: Any = (
        PoolMinute.objects.filter(pool=pool, minute__gte=now - dt.timedelta(days=7))
        .annotate(hour=TruncHour("minute"))
        .values("hour")
        .annotate(rate=Avg("tokens_out_per_s"))
        .exclude(rate__isnull=True)
        .order_by("-rate")
    )
    top = hours.first()
    return None if top is None else float(top["rate"])
