"""Sums up what was seen of each pool into minutes, for charts that go back weeks.

Rule 1: a number that was never known in a minute is None in its row, never 0.
Rule 2: no clock and no I/O; a row is given out when its minute is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MINUTE_S = 60


@dataclass(slots=True)
class _Open:
    """A minute that is still going on."""

    minute: int  # Unix minutes
    looks: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    verdict: str = "unknown"


class Minutes:
    """The open minute of each pool."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def add(
        self,
        pool: str,
        at: float,
        seen: Mapping[str, float | None],
        *,
        verdict: str = "unknown",
        waited_s: Mapping[str, float] | None = None,
    ) -> list[dict[str, Any]]:
        """Take in one look; returns the rows of minutes that are over."""
        minute = int(at // MINUTE_S)
        done = []
        current = self._open.get(pool)
        if current is not None and current.minute != minute:
            done.append(_row(pool, current))
            current = None
        if current is None:
            current = self._open[pool] = _Open(minute)
        current.looks += 1
        current.verdict = verdict
        for name, value in seen.items():
            if value is not None:
                current.sums[name] = current.sums.get(name, 0.0) + value
                current.counts[name] = current.counts.get(name, 0) + 1
        for blocker, seconds in (waited_s or {}).items():
            current.totals[blocker] = current.totals.get(blocker, 0.0) + seconds
        return done


def _row(pool: str, minute: _Open) -> dict[str, Any]:
    averages = {name: minute.sums[name] / count for name, count in minute.counts.items()}
    return {
        "pool": pool,
        "at": minute.minute * MINUTE_S,
        "looks": minute.looks,
        "verdict": minute.verdict,
        "waited_s": {blocker: round(total, 3) for blocker, total in minute.totals.items()},
        **averages,
    }
