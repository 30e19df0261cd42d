"""Counters for the gateways, and counts of rejections from them."""

from __future__ import annotations

import datetime as dt

import pytest
import redis

from quotas import directory, rejections, used
from quotas.models import RejectedMinute
from quotas.services import usage
from quotas.snapshots.counters import AS_OF, USED, field
from quotas.snapshots.usage import rejected_field, rejected_minute
from quotas.usage_rows import parse
from tests.quotas.helpers import record

pytestmark = pytest.mark.django_db


def write(*records) -> None:
    """Put records into the books."""
    usage.write(
        parsed=[parse(item.to_json()) for item in records],
        before=usage.position(),
        after=usage.Position("e", "r", "1-0"),
    )


@pytest.mark.parametrize(
    ("zone", "now", "day", "of_day"),
    [
        ("Europe/Berlin", "2026-10-25T22:59:59Z", "2026-10-25", 25 * 120),
        ("Europe/Berlin", "2026-10-25T23:00:00Z", "2026-10-26", 0),
        ("Asia/Tokyo", "2026-10-25T14:59:59Z", "2026-10-25", 24 * 120),
    ],
)
def test_counters_are_those_of_the_local_day_and_month(
    zone: str, now: str, day: str, of_day: int, settings
) -> None:
    """One request each hour of the day: the enforced number is the number of the report."""
    settings.TIME_ZONE = zone
    at = dt.datetime.fromisoformat(now)
    first = used.windows.start_of(dt.date(2026, 10, 25), zone)
    hours = [first + dt.timedelta(hours=n, minutes=30) for n in range(30)]
    write(
        *(
            record(n, arrived_at=hour.isoformat())
            for n, hour in enumerate(hours)
            if hour < used.windows.start_of(dt.date(2026, 10, 26), zone)
        )
    )

    found = used.counters(at)

    assert found.get(field(day, "interactive", "key", "key_alice"), 0) == of_day
    month = field("2026-10", "interactive", "person", "1")
    assert found[month] == 120 * (25 if zone == "Europe/Berlin" else 24)


def test_keys_add_up_to_their_person_and_people_to_their_group() -> None:
    """Classes are counted apart; the end user behind an application key is a person."""
    write(
        record(1, group_id="3"),
        record(2, key_id="key_2", group_id="3"),
        record(3, user_id="2", group_id="3", service_class="batch"),
        record(4, end_user="eve", group_id="3"),
    )

    found = used.counters(dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC))

    day = {name: value for name, value in found.items() if name.startswith("2026-11-20")}
    assert day == {
        field("2026-11-20", "interactive", "key", "key_alice"): 240,
        field("2026-11-20", "interactive", "key", "key_2"): 120,
        field("2026-11-20", "interactive", "person", "1"): 240,
        field("2026-11-20", "interactive", "person", "1/eve"): 120,
        field("2026-11-20", "interactive", "group", "3"): 360,
        field("2026-11-20", "batch", "key", "key_alice"): 120,
        field("2026-11-20", "batch", "person", "2"): 120,
        field("2026-11-20", "batch", "group", "3"): 120,
    }


def test_counters_come_back_with_a_lost_directory(valkey: redis.Redis) -> None:
    """Whoever republishes after a loss publishes what was used as well."""
    now = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
    write(record(1))

    assert directory.ensure_published(now=now)

    assert valkey.hget(USED, field("2026-11-20", "interactive", "person", "1")) == b"120"
    assert float(valkey.hget(USED, AS_OF)) == now.timestamp()


def test_a_minute_of_rejections_is_written_once_it_has_passed(valkey: redis.Redis) -> None:
    """Counting again after a crash between the stores changes nothing."""
    now = 1_800_000_000.0
    name = rejected_minute(now)
    valkey.hincrby(name, rejected_field("key_1", "queue_full"), 3)

    assert rejections.collect(valkey, now_s=now + 30) == 0
    assert rejections.collect(valkey, now_s=now + 90) == 1
    valkey.hincrby(name, rejected_field("key_1", "queue_full"), 3)  # as if DEL had been lost
    assert rejections.collect(valkey, now_s=now + 90) == 1

    row = RejectedMinute.objects.get()
    assert (row.key_id, row.code, row.count) == ("key_1", "queue_full", 3)
    assert not valkey.exists(name)
