"""Months of usage as partitions."""

from __future__ import annotations

import datetime as dt

import pytest

from quotas.models import UsageEvent, UsageHour
from quotas.services import partitions, usage
from quotas.usage_rows import parse
from tests.quotas.helpers import record

pytestmark = pytest.mark.django_db

FAR = dt.datetime(2031, 6, 30, 23, tzinfo=dt.UTC)


def write(number: int, at: dt.datetime) -> None:
    """Put one request into the books."""
    usage.write(
        parsed=[parse(record(number, arrived_at=at.isoformat()).to_json())],
        before=usage.position(),
        after=usage.Position("e", "r", f"{number}-0"),
    )


def test_months_are_ready_before_they_begin() -> None:
    """This month's and the next three partitions exist; a second call makes nothing."""
    made = partitions.ensure(now=FAR)

    assert made == [f"usage_event_2031_{month:02}" for month in (6, 7, 8, 9)]
    assert partitions.ensure(now=FAR) == []


def test_rows_that_came_before_their_partition_move_into_it() -> None:
    """A late start loses nothing: rows leave the default partition for their month's."""
    write(1, FAR)
    partitions.ensure(now=FAR, ahead=0)
    write(2, FAR + dt.timedelta(hours=2))  # July: no partition yet

    partitions.ensure(now=FAR)

    assert UsageEvent.objects.filter(arrived_at__year=2031).count() == 2
    write(1, FAR)  # still the same request
    assert UsageEvent.objects.filter(arrived_at__year=2031).count() == 2


def test_retention_drops_whole_months_and_keeps_their_sums() -> None:
    """Single requests end with their month; the hourly sums stay in the reports."""
    partitions.ensure(now=FAR)
    write(1, FAR)
    write(2, dt.datetime(2020, 1, 1, tzinfo=dt.UTC))  # in the default partition

    dropped = partitions.drop_before(now=dt.datetime(2032, 7, 1, tzinfo=dt.UTC), months=12)

    assert "usage_event_2031_06" in dropped
    assert "usage_event_2031_07" not in dropped
    assert not UsageEvent.objects.exists()
    assert UsageHour.objects.count() == 2
