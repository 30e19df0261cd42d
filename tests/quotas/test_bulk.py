"""Many limits at once: preview, all or none, and CSV there and back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from pghistory.models import Events

from quotas.models import LimitRow, User
from quotas.services import bulk, limit_csv, limits
from quotas.services.bulk import Operation
from quotas.services.limits import EVERYONE, Holder

pytestmark = pytest.mark.django_db

BATCH = {"service_class": "batch", "name": "in_flight", "per": "person"}


def set_for(user: User, value: int) -> LimitRow:
    """Give a person a limit of their own."""
    return limits.set_limit(holder=Holder(user=user), value=value, **BATCH)


def test_a_preview_shows_before_and_after_and_changes_nothing(alice: User, bob: User) -> None:
    """A raise by a share starts from what binds each, wherever it comes from, rounded up."""
    set_for(bob, 5)

    found = bulk.preview(operation=Operation("raise", percent=50), people=[alice, bob], **BATCH)

    assert [(c.who, c.before, c.before_level, c.after) for c in found] == [
        ("alice", 2, "default", 3),
        ("bob", 5, "user", 8),
    ]
    assert LimitRow.objects.count() == 1


def test_all_changes_are_made_or_none(alice: User, bob: User) -> None:
    """When one row changed since the preview, nobody's is written and the person is named."""
    found = bulk.preview(operation=Operation("set", value=9), people=[alice, bob], **BATCH)
    set_for(bob, 5)

    with pytest.raises(ValidationError, match="bob"):
        bulk.apply(changes=found)

    assert list(LimitRow.objects.values_list("user", "value")) == [(bob.pk, 5)]


def test_a_raise_with_an_end_leaves_the_lasting_rows(alice: User, bob: User) -> None:
    """A bulk raise until a date stands beside what was set, and ends by itself."""
    set_for(bob, 5)
    ends = timezone.now() + dt.timedelta(days=3)
    operation = Operation("raise", percent=100, ends_at=ends, note="end of term")
    bulk.apply(changes=bulk.preview(operation=operation, people=[alice, bob], **BATCH))

    rows = LimitRow.objects.order_by("user", "ends_at")
    assert [(r.user.username, r.value, r.ends_at) for r in rows] == [
        ("alice", 4, ends),
        ("bob", 10, ends),
        ("bob", 5, None),
    ]


def test_expiring_shows_what_holds_afterwards(alice: User, bob: User) -> None:
    """Taking overrides away touches only who has one, and names the wider value."""
    set_for(bob, 5)
    limits.set_limit(holder=Holder(group=bob.group), value=3, **BATCH)

    found = bulk.preview(operation=Operation("expire"), people=[alice, bob], **BATCH)
    bulk.apply(changes=found)

    assert [(c.who, c.before, c.after) for c in found] == [("bob", 5, 3)]
    assert not LimitRow.objects.filter(level="user").exists()


def test_a_preview_costs_the_same_for_many(
    alice: User, bob: User, django_assert_num_queries: Callable
) -> None:
    """One query, for one person or for all."""
    for people in ([alice], [alice, bob]):
        with django_assert_num_queries(1):
            bulk.preview(operation=Operation("set", value=9), people=people, **BATCH)


def test_applying_costs_the_same_for_many_and_is_all_in_the_trail(
    django_assert_max_num_queries: Callable, redis_url: str
) -> None:
    """A thousand people are changed by a dozen statements, each with its line in the trail."""
    many = [User(username=f"p{n}", email=f"p{n}@example.org") for n in range(100)]
    people = User.objects.bulk_create(many)
    for value in (7, 8):  # made the first time, changed the second
        found = bulk.preview(operation=Operation("set", value=value), people=people, **BATCH)
        with django_assert_max_num_queries(12):
            assert bulk.apply(changes=found) == 100
    assert set(LimitRow.objects.values_list("value", "edition")) == {(8, 2)}
    trail = Events.objects.filter(pgh_obj_model="quotas.LimitRow")
    assert trail.count() == 200

    found = bulk.preview(operation=Operation("expire"), people=people, **BATCH)
    bulk.apply(changes=found)
    assert not LimitRow.objects.exists()


@pytest.fixture
def text(alice: User, bob: User) -> str:
    """Return a CSV of three rows."""
    limits.set_limit(holder=EVERYONE, value=4, note="=cmd()", **BATCH)
    set_for(bob, 5)
    limits.set_limit(
        holder=Holder(user=alice),
        service_class="batch",
        name="allowed_models",
        names=["tiny", "large"],
    )
    return "".join(limit_csv.write())


def test_what_is_written_reads_back_as_no_change(text: str) -> None:
    """Out and in again asks for nothing; a note that looks like a formula survives, quoted."""
    assert "'=cmd()" in text
    assert limit_csv.read(text) == limit_csv.Plan((), ())


def test_an_edited_file_changes_what_was_edited(text: str, bob: User) -> None:
    """The plan is a preview of exactly that; applying it makes it so."""
    edited = text.replace("user,bob,batch,in_flight,person,5", "user,bob,batch,in_flight,person,7")
    plan = limit_csv.read(edited)
    assert [(c.who, c.before, c.after) for c in plan.changes] == [("bob", 5, 7)]

    bulk.apply(changes=plan.changes)

    assert LimitRow.objects.get(user=bob).value == 7
    assert limit_csv.read("".join(limit_csv.write())).changes == ()


def test_a_file_older_than_the_books_is_refused_line_by_line(text: str, bob: User) -> None:
    """A row edited since the file was written is an error of its line, not an overwrite."""
    set_for(bob, 6)

    plan = limit_csv.read(text.replace("person,5", "person,7"))

    assert plan.changes == ()
    assert [line for line, _ in plan.errors] == [3]


@pytest.mark.parametrize(
    "line",
    [
        "user,nobody,batch,in_flight,person,5",
        "user,bob,batch,inflight,person,5",
        "user,bob,batch,in_flight,group,5",
        "user,bob,slow,in_flight,person,5",
        "user,bob,batch,in_flight,person,-1",
        "user,bob,batch,in_flight,person,1e9",
        "user,bob,batch,in_flight,person,",
        "user,bob,batch,in_flight,person,unlimited",
        "user,bob,batch,in_flight,person,5,yesterday",
        "user,bob",
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, bob: User) -> None:
    """Every wrong line has its number and a sentence; none changes anything."""
    plan = limit_csv.read("level,who,class,limit,per,value,until,note,edition\n" + line)

    assert plan.changes == ()
    assert [number for number, _ in plan.errors] == [2]


def test_default_takes_a_row_away(text: str, bob: User) -> None:
    """The wider value holds again."""
    plan = limit_csv.read(text.replace("in_flight,person,5", "in_flight,person,default"))
    bulk.apply(changes=plan.changes)

    assert not LimitRow.objects.filter(user=bob).exists()
