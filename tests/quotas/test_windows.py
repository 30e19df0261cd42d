"""Calendar windows."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from quotas.snapshots.windows import day, month, window

BERLIN = "Europe/Berlin"
TOKYO = "Asia/Tokyo"


def local(text: str, zone: str, fold: int = 0) -> dt.datetime:
    """Return a local wall-clock time."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


@pytest.mark.parametrize(
    ("date", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-10-26", 24)]
)
def test_each_local_day_is_one_window(date: str, hours: int) -> None:
    """Both change days of Berlin are one window each, first use at 15:43 included."""
    first = day(local(f"{date}T00:00:00", BERLIN), BERLIN)
    last = day(local(f"{date}T23:59:59.999999", BERLIN), BERLIN)

    assert first == last == day(local(f"{date}T15:43:00", BERLIN), BERLIN)
    assert first.name == date
    assert first.end - first.start == dt.timedelta(hours=hours)


def test_the_hour_that_comes_twice_belongs_to_the_same_day() -> None:
    """02:30 before and after the clocks go back is counted in one window."""
    times = [local("2026-10-25T02:30:00", BERLIN, fold) for fold in (0, 1)]

    assert day(times[0], BERLIN) == day(times[1], BERLIN)


def test_tokyo_resets_at_its_own_midnight() -> None:
    """A quota used up at 23:59 in Tokyo is whole again one minute later, not nine hours later."""
    used_up = local("2026-11-20T23:59:00", TOKYO)

    assert day(used_up, TOKYO).end == used_up + dt.timedelta(minutes=1)
    assert day(used_up, TOKYO).end == dt.datetime(2026, 11, 20, 15, tzinfo=dt.UTC)


def test_a_date_whose_midnight_does_not_exist_begins_at_the_jump() -> None:
    """Where clocks go forward over midnight the day has no 00:30 and still one beginning."""
    jump = day(local("2026-03-29T12:00:00", "Asia/Beirut"), "Asia/Beirut")

    assert jump.end - jump.start == dt.timedelta(hours=23)


@pytest.mark.parametrize("zone", [BERLIN, TOKYO, "America/New_York", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("kind", ["day", "month"])
def test_windows_follow_each_other_without_gap_or_overlap(zone: str, kind: str) -> None:
    """Over two years each window ends where the next begins."""
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    found = [window(kind, at + dt.timedelta(hours=6 * n), zone) for n in range(4 * 730)]
    distinct = list(dict.fromkeys(found))

    assert all(before.end == after.start for before, after in pairwise(distinct))
    assert all(
        item.start <= at + dt.timedelta(hours=6 * n) < item.end for n, item in enumerate(found)
    )


def test_a_month_is_named_and_ends_by_the_calendar_of_the_zone() -> None:
    """The last evening of October in New York is November in UTC, and still October there."""
    at = dt.datetime(2026, 11, 1, 2, tzinfo=dt.UTC)

    assert month(at, "America/New_York").name == "2026-10"
    assert month(at, "UTC").name == "2026-11"
