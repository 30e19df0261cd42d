"""A person's usage over a range: the chart, the table and the sums, all from the hourly rollup."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Sum
from django.utils import timezone

from portal import charts
from quotas import reports
from quotas.models import ApiKey, UsageHour
from quotas.reports import SUMS, Line, Only, Period

SPLITS = {"class": "service_class", "model": "model", "key": "key_id"}
LONGEST_DAYS = 366


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
    """Return the range's rows, split into at most five series and the rest."""
    start, end = _bounds(wanted, now)
    found = _hours(only, start, end, SPLITS[split])
    starts = _starts(wanted, start, end)
    series, group_of = _series(found, split)
    rows = _rows(starts, found, group_of, len(series), wanted)
    shown = charts.marked(len(rows))
    columns = [
        charts.Column(_label(row.start, wanted), row.by_series, number in shown)
        for number, row in enumerate(rows)
    ]
    return Picture(tuple(rows), tuple(series), charts.stacked(columns), _total(rows))


def _bounds(wanted: Range, now: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    if not wanted.hours:
        return wanted.period.start, wanted.period.end
    end = now.replace(minute=0, second=0, microsecond=0) + dt.timedelta(hours=1)
    return end - dt.timedelta(hours=wanted.hours), end


def _hours(only: Only, start: dt.datetime, end: dt.datetime, column: str) -> list[dict[str, Any]]:
    """Read the sums by hour and series: one query, whatever the number of requests."""
    hours = UsageHour.objects.filter(hour__gte=start, hour__lt=end, **only.lookups())
    sums = {f"sum_{name}": Sum(name) for name in SUMS}
    found: Iterable[Any] = hours.values("hour", series=F(column)).annotate(**sums)
    return sorted(found, key=lambda row: row["hour"])


def _starts(wanted: Range, start: dt.datetime, end: dt.datetime) -> list[dt.datetime]:
    if wanted.hours:
        return [start + dt.timedelta(hours=n) for n in range(wanted.hours)]
    days = (wanted.period.last - wanted.period.first).days + 1
    first = wanted.period.first
    return [Period(day, day).start for day in (first + dt.timedelta(days=n) for n in range(days))]


def _series(found: list[dict[str, Any]], split: str) -> tuple[list[Series], dict[str, int]]:
    """Return the largest series and, for each value, which of them it belongs to."""
    tokens: dict[str, int] = defaultdict(int)
    for hour in found:
        tokens[hour["series"]] += hour["sum_prompt_tokens"] + hour["sum_completion_tokens"]
    if split == "class":
        names = ["interactive", "batch"]
    else:
        names = sorted(tokens, key=lambda name: -tokens[name])[: charts.MOST_SERIES - 1]
    labels = _labels(names, split)
    series = [Series(name, labels.get(name, name), tokens[name]) for name in names]
    group_of = {name: place for place, name in enumerate(names)}
    others = [name for name in tokens if name not in group_of]
    if others:
        group_of |= dict.fromkeys(others, len(series))
        rest = sum(tokens[name] for name in others)
        series.append(Series("", f"{len(others)} others", rest))
    return series, group_of


def _labels(names: list[str], split: str) -> dict[str, str]:
    if split != "key":
        return {}
    keys = ApiKey.objects.filter(public_id__in=names)
    return {key.public_id: key.name for key in keys}


def _rows(
    starts: list[dt.datetime],
    found: list[dict[str, Any]],
    group_of: dict[str, int],
    count: int,
    wanted: Range,
) -> list[Row]:
    ends = [*starts[1:], None]
    rows: list[Row] = []
    place = 0
    for start, end in zip(starts, ends, strict=True):
        sums = dict.fromkeys(SUMS, 0)
        parts = [0] * count
        while place < len(found) and (end is None or found[place]["hour"] < end):
            hour = found[place]
            for name in SUMS:
                sums[name] += hour[f"sum_{name}"]
            tokens = hour["sum_prompt_tokens"] + hour["sum_completion_tokens"]
            parts[group_of[hour["series"]]] += tokens
            place += 1
        rows.append(Row(start, sums, tuple(parts)))
    return rows


def _label(start: dt.datetime, wanted: Range) -> str:
    local = timezone.localtime(start) if wanted.hours else start
    return f"{local:%H:%M}" if wanted.hours else f"{local.day} {local:%b}"


def _total(rows: list[Row]) -> Line:
    sums = {name: sum(row.sums[name] for row in rows) for name in SUMS}
    return Line(labels={}, values={}, **sums)


def share_of_card(wanted: Range, mine: int) -> float | None:
    """Return this person's part of all tokens in per cent; None when nobody used the card."""
    everybody = reports.total(wanted.period).tokens
    return 100 * mine / everybody if everybody and not wanted.hours else None
