"""Charts as numbers: per cents across, pixels up, so that a template only prints them.

No script draws anything; a chart is SVG in the page, with the same data as a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from portal import words

HEIGHT, TOP, BASE = 200, 10.0, 168.0  # pixels: the drawing, its highest value, its zero line
GAP_PCT = 0.24  # part of a column left free
MOST_SERIES = 5
STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Column:
    """One place on the axis with a value for each series."""

    label: str
    values: tuple[float, ...]
    marked: bool = False  # its label stands under the axis


@dataclass(frozen=True, slots=True)
class Bar:
    """One piece of one column."""

    x: float
    width: float
    y: float
    height: float
    series: int


@dataclass(frozen=True, slots=True)
class Tick:
    """One line across with its number, or one label under the axis (y is then unused)."""

    place: float
    label: str
    end: bool = False


@dataclass(frozen=True, slots=True)
class BarChart:
    """Everything a template prints."""

    bars: tuple[Bar, ...]
    levels: tuple[Tick, ...]
    labels: tuple[Tick, ...]
    most: float


def scale(most: float, lines: int = 3) -> tuple[float, float]:
    """Return a round top at or above the largest value, and the step between lines."""
    if most <= 0:
        return float(lines), 1.0
    raw = most / lines
    power = 10 ** math.floor(math.log10(raw))
    step = next(one * power for one in STEPS if one * power >= raw * 0.999999)
    return step * math.ceil(most / step - 1e-9), step


def stacked(columns: Sequence[Column]) -> BarChart:
    """Return columns of stacked bars, the first series at the bottom."""
    top, step = scale(max((sum(column.values) for column in columns), default=0))
    per_value = (BASE - TOP) / top
    pitch = 100 / max(len(columns), 1)
    bars: list[Bar] = []
    for number, column in enumerate(columns):
        floor = BASE
        for series, value in enumerate(column.values):
            height = value * per_value
            if height > 0:
                # A thin gap keeps two pieces apart where their colours cannot.
                drawn = max(height - 0.7, 0.3)
                bars.append(
                    Bar(
                        x=round(pitch * (number + GAP_PCT / 2), 3),
                        width=round(pitch * (1 - GAP_PCT), 3),
                        y=round(floor - drawn, 1),
                        height=round(drawn, 1),
                        series=series,
                    )
                )
                floor -= height
    levels = [
        Tick(round(BASE - step * n * per_value, 1), words.count(step * n))
        for n in range(round(top / step) + 1)
    ]
    labels = [
        Tick(round(pitch * (number + 0.5), 2), column.label)
        for number, column in enumerate(columns)
        if column.marked
    ]
    return BarChart(tuple(bars), tuple(levels), tuple(labels), top)


def marked(count: int, most: int = 6) -> set[int]:
    """Return which of so many columns get a label, evenly spread."""
    every = max(1, math.ceil(count / most))
    return set(range(every // 2, count, every))


@dataclass(frozen=True, slots=True)
class GaugeTick:
    """A line on a gauge's scale."""

    x: float


def gauge_width(used: float, limit: float) -> float:
    """Return the filled part of a gauge; over the limit it is full."""
    return round(min(100.0, 100.0 * used / limit), 2) if limit > 0 else 100.0


@dataclass(frozen=True, slots=True)
class Dot:
    """One measured point with its spread."""

    x: float
    y: float
    y_low: float
    y_high: float
    label: str
    value: str
    beyond: bool  # past the slots: a dashed line leads here


@dataclass(frozen=True, slots=True)
class LineChart:
    """Everything a template prints of measured points over evenly spaced steps."""

    dots: tuple[Dot, ...]
    levels: tuple[Tick, ...]
    beyond_x: float | None  # where the part past the slots begins

    @property
    def pairs(self) -> tuple[tuple[Dot, Dot], ...]:
        """Return neighbours, for the lines between them."""
        return tuple(zip(self.dots, self.dots[1:], strict=False))


@dataclass(frozen=True, slots=True)
class Measured:
    """One point to draw: value with the lowest and highest of its repeats."""

    step: int
    value: float
    low: float
    high: float


LINE_TOP, LINE_BASE = 34.0, 176.0


def line(points: Sequence[Measured], slots: int) -> LineChart:
    """Return points over concurrency; those past the slots are marked as such."""
    top, step = scale(max((p.high for p in points), default=0))
    per_value = (LINE_BASE - LINE_TOP) / top
    pitch = 100 / max(len(points), 1)
    dots = tuple(
        Dot(
            x=round(pitch * (place + 0.5), 2),
            y=round(LINE_BASE - p.value * per_value, 1),
            y_low=round(LINE_BASE - p.low * per_value, 1),
            y_high=round(LINE_BASE - p.high * per_value, 1),
            label=str(p.step),
            value=f"{p.value:.0f}" if p.value >= 20 else f"{p.value:.1f}",
            beyond=p.step > slots,
        )
        for place, p in enumerate(points)
    )
    levels = tuple(
        Tick(round(LINE_BASE - step * n * per_value, 1), words.count(step * n))
        for n in range(round(top / step) + 1)
    )
    first = next((dot for dot in dots if dot.beyond), None)
    return LineChart(dots, levels, round(first.x - pitch / 2, 2) if first else None)
