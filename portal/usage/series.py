"""A person's usage over a range: the chart, the table and the sums, all from the hourly rollup."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.cache import caches
from django.db.models import Case, F, IntegerField, QuerySet, Sum, Value, When
from django.db.models.functions import TruncDay
from django.utils import timezone

from portal import charts
from quotas import reports
from quotas.models import ApiKey, UsageHour
from quotas.reports import SUMS, Line, Only, Period

SPLITS = {"class": "service_class", "model": "model", "key": "key_id"}
LONGEST_DAYS = 366
SHARE_KEPT_S = 60


@dataclass(frozen=True, slots=True)
class Range:
    """What a page shows: so many hours, or days from first to last."""

    name: str  # 24h, 7d, 30d, custom
    period: Period
    hours: int = 0  # 24 for the last day, 0 for days

    @property
    def unit(self) -> str:
        """Return what one column of the chart is."""
        return "hour" if self.hours else "day"


class WrongRange(ValueError):
    """A range that cannot be shown, with the reason in words."""


def chosen(name: str, first: str, last: str, now: dt.datetime) -> Range:
    """Return the range an address asks for; anything unknown is the last 30 days."""
    if name == "24h":
        return Range("24h", Period.last_days(2, now=now), hours=24)
    if name == "7d":
        return Range("7d", Period.last_days(7, now=now))
    if name == "custom" and (first or last):
        try:
            start, end = dt.date.fromisoformat(first), dt.date.fromisoformat(last)
        except ValueError:
            raise WrongRange("Give both days as year-month-day.") from None
        if not start <= end:
            raise WrongRange("The first day comes after the last one.")
        if (end - start).days >= LONGEST_DAYS:
            raise WrongRange(f"A page shows {LONGEST_DAYS} days at most; the CSV has no limit.")
        return Range("custom", Period(start, end))
    return Range("30d", Period.last_days(30, now=now))


@dataclass(frozen=True, slots=True)
class Series:
    """One part of a stacked chart."""

    name: str
    label: str
    tokens: int


CLASS_SERIES = (Series("interactive", "interactive", 0), Series("batch", "batch", 0))


@dataclass(frozen=True, slots=True)
class Row:
    """One hour or day with its sums."""

    start: dt.datetime
    sums: dict[str, int]
    by_series: tuple[int, ...]

    @property
    def mean_wait_s(self) -> float | None:
        """Return the mean wait for a slot; None where nothing ran."""
        requests = self.sums["requests"]
        return self.sums["queue_wait_ms"] / requests / 1000 if requests else None

    @property
    def mean_ttft_s(self) -> float | None:
        """Return the mean time to the first word; None where nothing was streamed."""
        count = self.sums["ttft_count"]
        return self.sums["ttft_ms"] / count / 1000 if count else None


@dataclass(frozen=True, slots=True)
class Picture:
    """What the usage page shows."""

    rows: tuple[Row, ...]
    series: tuple[Series, ...]
    chart: charts.BarChart
    total: Line


def picture(only: Only, wanted: Range, split: str, now: dt.datetime) -> Picture:
    """Return the range's rows, split into at most five series and the rest.

    Two queries over the rollup, whose answers hold one row for each column of the chart and
    series: as many for a million requests as for ten.
    """
    start, end = bounds(wanted, now)
    hours = UsageHour.objects.filter(hour__gte=start, hour__lt=end, **only.lookups())
    series = list(CLASS_SERIES) if split == "class" else _series(hours, split)
    rows = _rows(_starts(wanted, start), _sums(hours, wanted, split, series), len(series))
    if split == "class":
        series = [
            replace(one, tokens=sum(row.by_series[place] for row in rows))
            for place, one in enumerate(series)
        ]
    shown = charts.marked(len(rows))
    columns = [
        charts.Column(_label(row.start, wanted), row.by_series, number in shown)
        for number, row in enumerate(rows)
    ]
    return Picture(tuple(rows), tuple(series), charts.stacked(columns), _total(rows))


def bounds(wanted: Range, now: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """Return the first instant of a range and the first after it."""
    if not wanted.hours:
        return wanted.period.start, wanted.period.end
    end = now.replace(minute=0, second=0, microsecond=0) + dt.timedelta(hours=1)
    return end - dt.timedelta(hours=wanted.hours), end


def _starts(wanted: Range, start: dt.datetime) -> list[dt.datetime]:
    if wanted.hours:
        return [start + dt.timedelta(hours=n) for n in range(wanted.hours)]
    first = wanted.period.first
    days = (wanted.period.last - first).days + 1
    return [Period(day, day).start for day in (first + dt.timedelta(days=n) for n in range(days))]


def _series(hours: QuerySet[UsageHour], split: str) -> list[Series]:
    """Return the largest series, and the others as one."""
    tokens = Sum(F("prompt_tokens") + F("completion_tokens"))
    found: list[Any] = list(
        hours.values_list(SPLITS[split]).annotate(tokens=tokens).order_by("-tokens", SPLITS[split])
    )
    largest, others = found[: charts.MOST_SERIES - 1], found[charts.MOST_SERIES - 1 :]
    labels = _labels([name for name, _ in largest], split)
    series = [Series(name, labels.get(name, name), sum_) for name, sum_ in largest]
    if others:
        rest = sum(sum_ for _, sum_ in others)
        series.append(Series("", f"{len(others)} others", rest))
    return series


def _labels(names: list[str], split: str) -> dict[str, str]:
    if split != "key":
        return {}
    keys = ApiKey.objects.filter(public_id__in=names)
    return {key.public_id: key.name for key in keys}


def _sums(
    hours: QuerySet[UsageHour], wanted: Range, split: str, series: list[Series]
) -> dict[tuple[dt.datetime, int], dict[str, int]]:
    """Return the sums by column and series; whatever is in no series is in the last one."""
    named = [place for place, one in enumerate(series) if one.name]
    which = Case(
        *(When(**{SPLITS[split]: series[place].name}, then=Value(place)) for place in named),
        default=Value(len(named)),
        output_field=IntegerField(),
    )
    zone = ZoneInfo(settings.TIME_ZONE)
    column = F("hour") if wanted.hours else TruncDay("hour", tzinfo=zone)
    found: Iterable[Any] = (
        hours.annotate(column=column, which=which)
        .values("column", "which")
        .annotate(**{f"sum_{name}": Sum(name) for name in SUMS})
    )
    return {
        (row["column"], row["which"]): {name: row[f"sum_{name}"] for name in SUMS} for row in found
    }


def _rows(
    starts: list[dt.datetime], sums: dict[tuple[dt.datetime, int], dict[str, int]], count: int
) -> list[Row]:
    rows: list[Row] = []
    nothing = dict.fromkeys(SUMS, 0)
    for start in starts:
        parts = [sums.get((start, place), nothing) for place in range(max(count, 1))]
        total = {name: sum(part[name] for part in parts) for name in SUMS}
        tokens = tuple(part["prompt_tokens"] + part["completion_tokens"] for part in parts[:count])
        rows.append(Row(start, total, tokens))
    return rows


def _label(start: dt.datetime, wanted: Range) -> str:
    local = timezone.localtime(start) if wanted.hours else start
    return f"{local:%H:%M}" if wanted.hours else f"{local.day} {local:%b}"


def _total(rows: list[Row]) -> Line:
    sums = {name: sum(row.sums[name] for row in rows) for name in SUMS}
    return Line(labels={}, values={}, **sums)


def share_of_card(wanted: Range, mine: int) -> float | None:
    """Return this person's part of all tokens in per cent; None when nobody used the card."""
    if wanted.hours:
        return None
    # Everybody's sum is the same on everybody's page: count it once a minute.
    name = f"everybody:{wanted.period.first}:{wanted.period.last}"
    everybody = caches["process"].get_or_set(
        name, lambda: reports.total(wanted.period).tokens, SHARE_KEPT_S
    )
    return min(100.0, 100 * mine / everybody) if everybody else None
