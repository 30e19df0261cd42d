"""Slots reserved for a group by calendar: when, what is refused, what gateways are told."""

from __future__ import annotations

import datetime as dt
import json
from io import StringIO
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from pghistory.models import Events

from quotas import directory
from quotas.models import Group, Pool, Reservation, User
from quotas.occurrences import occurrences
from quotas.services import engines, reservations
from quotas.snapshots.directory import DIRECTORY, fleet_from_json

pytestmark = pytest.mark.django_db

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def pool() -> Pool:
    """Return a model with two replicas of four slots."""
    for port in (8, 9):
        replica = engines.register(
            url=f"http://127.0.0.1:{port}", pool="tiny", kind="vllm", slots=4
        )
    return replica.pool


def reserve(group: Group, pool: Pool, slots: int, start: float, hours: float = 2, **more: Any):
    """Reserve slots, `start` hours from now."""
    starts_at = timezone.now() + start * HOUR
    return reservations.reserve(
        group=group, pool=pool, slots=slots, starts_at=starts_at,
        ends_at=starts_at + hours * HOUR, **more,
    )  # fmt: skip


def told(valkey: redis.Redis) -> list[tuple[str, int, bool]]:
    """Return the reservations the gateways read."""
    (pool,) = fleet_from_json(valkey.hget(DIRECTORY, "fleet")).pools
    return [(one.group_name, one.slots, one.is_running) for one in pool.reservations]


@pytest.mark.parametrize("month", [3, 10])
def test_a_weekly_course_keeps_its_time_of_day_when_the_clocks_change(month: int) -> None:
    """A course at ten is at ten before and after, and lasts as long by the wall."""
    start = dt.datetime(2027, month, 20, 10, tzinfo=BERLIN)

    found = occurrences(start, start + 2 * HOUR, 3, "Europe/Berlin")

    shown = [(one.starts_at.astimezone(BERLIN), one.ends_at.astimezone(BERLIN)) for one in found]
    assert [(a.hour, b.hour) for a, b in shown] == [(10, 12)] * 3
    assert [(a.date() - start.date()).days for a, _ in shown] == [0, 7, 14]
    assert len({one.starts_at.utcoffset() for one in found}) == 1  # instants, not wall times


@pytest.mark.django_db(transaction=True)
def test_a_reservation_begins_and_ends_by_itself(
    group: Group, pool: Pool, valkey: redis.Redis
) -> None:
    """The usage writer's look each second tells the gateways when it begins and when it is over."""
    reserve(group, pool, 3, start=1, weeks=2)
    now = timezone.now()
    assert told(valkey) == [("astronomy", 3, False)]

    before = int(valkey.hget(DIRECTORY, "version"))
    assert directory.ensure_published(now=now + 1.1 * HOUR)
    assert told(valkey) == [("astronomy", 3, True)]
    # Gateways look at nothing whose version they know.
    assert int(valkey.hget(DIRECTORY, "version")) > before
    assert not directory.ensure_published(now=now + 2 * HOUR)

    assert directory.ensure_published(now=now + 3.1 * HOUR)
    assert told(valkey) == [("astronomy", 3, False)]  # next week's
    assert directory.ensure_published(now=now + dt.timedelta(days=7) + 4 * HOUR)
    assert told(valkey) == []


def test_no_instant_is_reserved_beyond_the_slots(
    group: Group, pool: Pool, valkey: redis.Redis
) -> None:
    """Three reservations that meet in one hour may take all slots there, and not one more."""
    other = Group.objects.create(name="biology")
    reserve(group, pool, 3, start=0, hours=3, weeks=3)
    reserve(other, pool, 3, start=2, hours=4)
    reserve(group, pool, 2, start=2.5, hours=0.5)

    with pytest.raises(ValidationError, match=r"8 of the 8 slots .*3 for astronomy.* do not fit"):
        reserve(other, pool, 1, start=1, hours=2)
    reserve(other, pool, 5, start=1, hours=0.9)  # beside the first alone
    with pytest.raises(ValidationError, match="6 more do not fit"):
        reserve(other, pool, 6, start=24 * 7 + 1, hours=1)  # meets next week's
    assert Reservation.objects.count() == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"slots": 9}, "has 8 slots"),
        ({"slots": 0}, "greater than or equal to 1"),
        ({"hours": -1}, "end after it starts"),
        ({"start": -5}, "over already"),
        ({"hours": 200, "weeks": 2}, "At most a week"),
        ({"weeks": 54}, "less than or equal to 53"),
    ],
)
def test_what_makes_no_sense_is_refused(
    group: Group, pool: Pool, valkey: redis.Redis, more: dict[str, Any], said: str
) -> None:
    """Nothing is written, and the message says why."""
    with pytest.raises(ValidationError, match=said):
        reserve(group, pool, **{"slots": 1, "start": 1, **more})
    assert not Reservation.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_an_edit_is_held_against_the_others_and_audited(
    group: Group, pool: Pool, valkey: redis.Redis
) -> None:
    """What was kept and what it was changed to stays in the trail after it is cancelled."""
    mine = reserve(group, pool, 3, start=0)
    reserve(Group.objects.create(name="biology"), pool, 4, start=1)
    number = str(mine.pk)

    with pytest.raises(ValidationError, match="do not fit"):
        reservations.change(reservation=mine, slots=5)
    reservations.change(reservation=mine, slots=4)
    reservations.cancel(reservation=mine)

    kept = Events.objects.filter(pgh_obj_model="quotas.Reservation", pgh_obj_id=number)
    changes = [diff for diff in kept.order_by("pgh_id").values_list("pgh_diff", flat=True) if diff]
    assert {"slots": [3, 4]} in changes
    assert [(name, slots) for name, slots, _ in told(valkey)] == [("biology", 4)]


def test_the_shell_and_the_page_refuse_the_same(
    group: Group, pool: Pool, admin: User, client: Client, valkey: redis.Redis
) -> None:
    """`manage.py reserve` writes and lists; the page says beside the field what does not fit."""
    out = StringIO()
    wanted = ["--group=astronomy", "--model=tiny", "--until=2h"]
    call_command("reserve", *wanted, "--slots=6", "--json", stdout=out)
    (row,) = json.loads(out.getvalue())["reservations"]
    assert (row["group"], row["slots"], row["state"]) == ("astronomy", 6, "running")
    with pytest.raises(CommandError, match="3 more do not fit"):
        call_command("reserve", *wanted, "--slots=3")

    client.force_login(admin)
    start = timezone.localtime()
    form = {
        "group": group.pk, "pool": pool.pk, "weeks": 1, "note": "",
        "starts_at_0": f"{start:%Y-%m-%d}", "starts_at_1": "00:00:00",
        "ends_at_0": f"{start + dt.timedelta(days=2):%Y-%m-%d}", "ends_at_1": "00:00:00",
    }  # fmt: skip
    answer = client.post("/admin/quotas/reservation/add/", {**form, "slots": 3})
    assert "3 more do not fit" in answer.content.decode()
    assert client.post("/admin/quotas/reservation/add/", {**form, "slots": 2}).status_code == 302
    assert sorted(Reservation.objects.values_list("slots", flat=True)) == [2, 6]


def test_everybody_sees_what_is_reserved_before_and_while(
    group: Group, pool: Pool, client: Client, valkey: redis.Redis
) -> None:
    """The status page names the group, the slots and the dates, and says which one runs."""
    reserve(group, pool, 3, start=-1, note="practical")
    reserve(Group.objects.create(name="biology"), pool, 2, start=48, weeks=4)

    page = client.get("/status/").content.decode()

    assert "3 of 8 slots of tiny are kept for astronomy" in page
    assert "2 of 8 slots of tiny will be kept for biology" in page
    assert "practical" in page
    assert "4 weeks" in page
