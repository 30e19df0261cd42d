"""The published capacity of a pool, as the status page shows it: only what the run found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from portal import charts
from quotas.models import CapacityRun


@dataclass(frozen=True, slots=True)
class Row:
    """What so many people at once get; None is not measured."""

    people: int
    each: float | None
    each_low: float | None
    each_high: float | None
    together: float | None
    first_word_s: float | None
    unsteady: bool


@dataclass(frozen=True, slots=True)
class Published:
    """One published run."""

    run: CapacityRun
    rows: tuple[Row, ...]
    chart: charts.LineChart | None
    prompt_tokens: int
    long_prompt: tuple[int, list[tuple[int, float]]] | None  # tokens, (at once, seconds)
    other_settings: tuple[str, ...] = ()  # the engine's settings that are not those measured
    reached_per_s: float | None = None  # tokens written in the busiest hour of last week

    @property
    def settings_text(self) -> str:
        """Return the settings of the run that people know, in one line."""
        known = ("model", "engine", "version", "quantisation", "context", "slots", "sharing_mode")
        found = self.run.fingerprint
        return ", ".join(
            f"{name.replace('_', ' ')} {found[name]}" for name in known if found.get(name)
        )


def of_run(
    run: CapacityRun,
    slots: int,
    other_settings: Iterable[str] = (),
    reached_per_s: float | None = None,
) -> Published:
    """Return a run's short prompts by concurrency, and its longest prompt."""
    points: list[dict[str, Any]] = list(run.report.get("points", []))
    lengths = sorted({point["planned_tokens"] for point in points})
    short = [point for point in points if lengths and point["planned_tokens"] == lengths[0]]
    rows = tuple(_row(point) for point in sorted(short, key=lambda p: int(p["concurrency"])))
    drawn = [
        charts.Measured(row.people, row.each, row.each_low or row.each, row.each_high or row.each)
        for row in rows
        if row.each is not None
    ]
    return Published(
        run=run,
        rows=rows,
        chart=charts.line(drawn, slots) if drawn else None,
        prompt_tokens=lengths[0] if lengths else 0,
        long_prompt=_long(points, lengths[-1]) if len(lengths) > 1 else None,
        other_settings=tuple(other_settings),
        reached_per_s=reached_per_s,
    )


def _row(point: dict[str, Any]) -> Row:
    each, together = point.get("decode_per_user_per_s"), point.get("decode_per_s")
    return Row(
        people=int(point["concurrency"]),
        each=each["value"] if each else None,
        each_low=each["low"] if each else None,
        each_high=each["high"] if each else None,
        together=together["value"] if together else None,
        first_word_s=point.get("ttft_p95_s"),
        unsteady=bool(point.get("unsteady")),
    )


def _long(points: list[dict[str, Any]], tokens: int) -> tuple[int, list[tuple[int, float]]]:
    """Return how long the longest prompt takes to read, by how many are read at once."""
    found = [
        (int(point["concurrency"]), float(point["ttft_p50_s"]))
        for point in points
        if point["planned_tokens"] == tokens and point.get("ttft_p50_s") is not None
    ]
    return tokens, sorted(found)
