"""Turns counts into the per cents of the gauge and the bars; pure, the template only prints."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

BARS = 24
CHART_PX, TOP_PX, BASE_PX = 120, 8, 92


@dataclass(frozen=True, slots=True)
class Gauge:
    """A bar of done, failed and sent lines, in per cent of all."""

    done: float
    failed: float
    sent: float
    label: str

    @property
    def failed_at(self) -> float:
        """Return where the failed part begins."""
        return self.done

    @property
    def sent_at(self) -> float:
        """Return where the sent part begins."""
        return self.done + self.failed


def gauge(total: int, done: int, failed: int, sent: int = 0) -> Gauge:
    """Return the gauge of a job."""
    whole = max(1, total)
    label = f"{done:,} done"
    if failed:
        label += f", {failed:,} failed"
    if sent:
        label += f", {sent:,} sent"
    return Gauge(
        done=100 * done / whole,
        failed=100 * failed / whole,
        sent=100 * sent / whole,
        label=f"{label}, of {total:,} lines",
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its place in per cent, its height in pixels, its value for the table."""

    x: float
    y: float
    height: float
    since: dt.datetime
    per_minute: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines finished per minute over time."""

    bars: tuple[Bar, ...]
    width: float  # of one bar, in per cent
    levels: tuple[tuple[float, str], ...]  # pixel and label of the grid lines
    since: dt.datetime
    until: dt.datetime

    @property
    def is_short(self) -> bool:
        """Tell whether minutes are too coarse to mark the axis with."""
        return self.until - self.since < dt.timedelta(minutes=5)

    @property
    def middle(self) -> dt.datetime:
        """Return the time in the middle."""
        return self.since + (self.until - self.since) / 2


def chart(counts: Mapping[int, int], since: dt.datetime, until: dt.datetime) -> Chart:
    """Return the bars of lines finished in each of `BARS` equal parts of the time."""
    minutes = max((until - since).total_seconds() / 60 / BARS, 1 / 60)
    rates = [counts.get(number, 0) / minutes for number in range(BARS)]
    most = _round_up(max(rates, default=0.0))
    step = (until - since) / BARS
    height = BASE_PX - TOP_PX
    bars = tuple(
        Bar(
            x=100 * number / BARS + 0.3,
            y=BASE_PX - height * rate / most - 1,
            height=height * rate / most,
            since=since + number * step,
            per_minute=rate,
        )
        for number, rate in enumerate(rates)
    )
    levels = tuple((BASE_PX - height * part, f"{most * part:g}") for part in (0.0, 0.5, 1.0))
    return Chart(bars, 100 / BARS - 0.6, levels, since, until)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 … that is not smaller."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while True:
        for factor in (1, 2, 5):
            if factor * size >= value:
                return factor * size
        size *= 10
