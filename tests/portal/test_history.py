"""What a pool was like: half hours and days."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from portal.status import history, measured
from quotas.models import CapacityRun, PoolMinute

NOW = dt.datetime(2026, 11, 26, 14, 32, tzinfo=dt.UTC)


def minute(ago: int, **changes: Any) -> PoolMinute:
    fields: dict[str, Any] = {
        "pool": "p", "minute": NOW - dt.timedelta(minutes=ago), "looks": 60, "slots": 8,
        "held_interactive": 4, "held_batch": 2, "waiting_interactive": 1, "verdict": "ok",
    }  # fmt: skip
    return PoolMinute(**{**fields, **changes})


@pytest.mark.django_db
def test_half_hours_nobody_looked_at_are_unknown() -> None:
    """
    A gap in the looks is drawn dashed and unknown, never as an idle card.
    """
    PoolMinute.objects.bulk_create([minute(1), minute(2, verdict="busy"), minute(70)])
    day = history.last_day("p", NOW)

    assert len(day.halves) == 48
    assert (day.halves[-1].interactive, day.halves[-1].state) == (4, "busy")
    assert day.halves[-2].state == "unknown"
    assert day.halves[-4].interactive == 4
    assert sum(bar.series == 2 for bar in day.bars) == 46


@pytest.mark.django_db
def test_what_was_unknown_in_a_look_stays_unknown() -> None:
    """
    Minutes whose numbers were missing give no average of zero.
    """
    PoolMinute.objects.bulk_create([minute(1, held_interactive=None, held_batch=None)])

    assert history.last_day("p", NOW).halves[-1].interactive is None


@pytest.mark.parametrize(
    ("minutes", "state"),
    [
        ({}, "unknown"),
        ({"ok": 29}, "unknown"),
        ({"ok": 900, "busy": 29}, "ok"),
        ({"ok": 900, "busy": 30}, "busy"),
        ({"ok": 900, "busy": 300, "down": 31}, "down"),
        ({"unknown": 1440}, "unknown"),
    ],
)
def test_a_day_is_named_after_the_worst_that_lasted(minutes: dict[str, int], state: str) -> None:
    """
    A state must hold for half an hour to be the day's; a day hardly looked at is unknown.
    """
    assert history.state_of_day(minutes) == state


def test_a_published_run_shows_what_it_found_and_no_more() -> None:
    """
    Points that were not measured stay empty; the longest prompt is read from its own points.
    """
    figure = {"value": 25.0, "low": 24.0, "high": 27.0}
    points = [
        {"planned_tokens": 128, "concurrency": 8, "decode_per_user_per_s": figure,
         "decode_per_s": None, "ttft_p95_s": 1.1, "unsteady": True},
        {"planned_tokens": 10_000, "concurrency": 1, "decode_per_user_per_s": None,
         "ttft_p50_s": 7.6},
    ]  # fmt: skip
    shown = measured.of_run(CapacityRun(report={"points": points}, fingerprint={"slots": 8}), 8)

    assert [(row.people, row.each, row.together, row.unsteady) for row in shown.rows] == [
        (8, 25.0, None, True)
    ]
    assert shown.long_prompt == (10_000, [(1, 7.6)])
    assert measured.of_run(CapacityRun(report={}), 8).chart is None
