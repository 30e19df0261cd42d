"""When is it quiet, and what real traffic reached: from the minutes alone."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from portal.status import week
from quotas.models import PoolMinute

NOW = dt.datetime(2026, 11, 26, 14, 30, tzinfo=dt.UTC)  # a Thursday
pytestmark = pytest.mark.django_db


def minutes(start: dt.datetime, count: int, **seen: float | None) -> None:
    """Write down so many minutes."""
    PoolMinute.objects.bulk_create(
        PoolMinute(pool="m", minute=start + dt.timedelta(minutes=n), looks=12, **seen)
        for n in range(count)
    )


def test_an_hour_of_the_week_is_the_mean_of_its_minutes() -> None:
    """
    Two Thursdays at ten make one cell; an hour with a few looks only is unknown, not quiet.
    """
    ten = NOW.replace(hour=10, minute=0)
    minutes(ten, 30, expected_wait_interactive_s=10.0)
    minutes(ten - dt.timedelta(days=7), 30, expected_wait_interactive_s=30.0)
    minutes(ten + dt.timedelta(hours=1), 5, expected_wait_interactive_s=99.0)
    minutes(ten + dt.timedelta(hours=2), 30, expected_wait_interactive_s=None)
    found = week._read("m", NOW)

    assert found.waits[3][10] == pytest.approx(20)
    assert (found.waits[3][11], found.waits[3][12], found.waits[0][10]) == (None, None, None)
    assert not found.is_empty
    assert week._read("other", NOW).is_empty


def test_a_longer_wait_is_drawn_taller_and_unknown_is_marked() -> None:
    """
    At once is a flat line, two minutes fill the cell, unknown is dashed at full height.
    """
    waits: list[float | None] = [0.0, 10.0, 120.0, 5000.0, None]
    found = week.Week((tuple(waits + [None] * 19), *[(None,) * 24] * 6))
    heights = [band.height for band in found.bands[:5]]

    assert heights[0] == 1.0
    assert heights[0] < heights[1] < heights[2] == heights[3] == week.TALLEST
    assert [band.state for band in found.bands[3:5]] == ["known", "unknown"]
    assert found.rows[0][1][0] == pytest.approx((0 + 10 + 120 + 5000) / 4)


def test_real_traffic_is_that_of_the_busiest_hour() -> None:
    """
    The best hour of the last week counts; an older one does not, and no minutes are unknown.
    """
    assert week.reached("m", NOW) is None
    minutes(NOW - dt.timedelta(days=9), 10, tokens_out_per_s=900.0)
    minutes(NOW.replace(minute=0) - dt.timedelta(hours=3), 30, tokens_out_per_s=100.0)
    minutes(NOW.replace(minute=0) - dt.timedelta(hours=1), 30, tokens_out_per_s=300.0)

    assert week.reached("m", NOW) == pytest.approx(300)
    assert timezone.is_aware(NOW)
