"""Which limit binds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from quotas import limits, resolve
from quotas.resolve import Row, Target

NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
ALICE = Target(group_id=7, user_id=1, key_pk=10)


def row(level: str, value: int | None, *, name: str = "in_flight", per: str = "key", **more: Any):
    """Return a row set for Alice's group, Alice, or her key."""
    fields: dict[str, Any] = {
        "id": value or 0,
        "group_id": 7 if level == "group" else None,
        "user_id": 1 if level == "user" else None,
        "key_pk": 10 if level == "key" else None,
        "service_class": "interactive",
        "names": None,
        "ends_at": None,
    }
    return Row(level=level, value=value, name=name, per=per, **{**fields, **more})


def binding(*rows: Row, name: str = "in_flight", per: str = "key", target: Target = ALICE):
    """Return what binds for one limit."""
    found = resolve.explain(resolve.index(rows, NOW), target, "interactive")
    return next(item for item in found if item.spec.name == name and item.per == per)


def test_the_narrowest_level_that_is_set_wins() -> None:
    """A key's row beats its user's, which beats the group's, which beats everyone's."""
    rows = [row("everyone", 3), row("group", 4), row("user", 5), row("key", 6)]

    values = [binding(*rows[:count]).value for count in range(5)]

    assert values == [2, 3, 4, 5, 6]  # 2 is the default


def test_a_narrower_row_may_also_be_smaller() -> None:
    """The narrowest level wins whichever number is larger."""
    assert binding(row("everyone", 9), row("key", 1)).value == 1


def test_rows_of_others_do_not_count() -> None:
    """A row of another group, user, key or class binds nobody else."""
    others = [
        row("group", 4, group_id=8),
        row("user", 5, user_id=2),
        row("key", 6, key_pk=11),
        row("everyone", 7, service_class="batch"),
    ]

    assert binding(*others).level == "default"


@pytest.mark.parametrize(("seconds", "value"), [(1, 50), (0, 4), (-1, 4)])
def test_a_row_with_an_end_counts_until_it_ends(seconds: int, value: int) -> None:
    """A raise holds instead of its level's lasting row up to, not including, its end."""
    ends = NOW + dt.timedelta(seconds=seconds)
    rows = [row("user", 50, ends_at=ends), row("user", 4), row("everyone", 3)]

    assert binding(*rows).value == value
    assert binding(*reversed(rows)).value == value


def test_a_raise_of_a_group_does_not_pass_its_members_own_rows() -> None:
    """A time-limited row counts at its own level only."""
    raised = row("group", 50, ends_at=NOW + dt.timedelta(days=1))

    assert binding(raised, row("user", 4)).value == 4


def test_key_person_and_group_bind_side_by_side() -> None:
    """Limits counted over different things are different limits."""
    rows = [row("user", 6, per="person"), row("key", 3)]
    limits = resolve.for_gateway(resolve.explain(resolve.index(rows, NOW), ALICE, "interactive"))

    assert (limits.key["in_flight"], limits.person["in_flight"]) == (3, 6)


def test_what_nobody_set_is_marked_as_default() -> None:
    """The gateway lends idle capacity past defaults only, so it must know which they are."""
    found = resolve.for_gateway(
        resolve.explain(resolve.index([row("key", 2)], NOW), ALICE, "interactive")
    )

    assert found.key == {"in_flight": 2, "queued": 8}
    assert found.person == {"queued": 16}
    assert "key.in_flight" not in found.defaults
    assert {"person.in_flight", "key.queued"} <= set(found.defaults)


def test_no_limit_is_left_out_and_not_a_default() -> None:
    """An empty value lifts a wider number and does not reach the gateway as a number."""
    rows = [
        row("everyone", 100, name="max_prompt_tokens"),
        row("user", None, name="max_prompt_tokens"),
    ]
    found = resolve.for_gateway(resolve.explain(resolve.index(rows, NOW), ALICE, "interactive"))

    assert "max_prompt_tokens" not in found.key
    assert "key.max_prompt_tokens" not in found.defaults


def test_every_limit_has_a_usual_way_to_be_counted() -> None:
    """What a command means without --per is always allowed at that level."""
    for spec in limits.SPECS:
        for level in ("everyone", "group", "user"):
            assert spec.usual_per(level) in spec.pers
