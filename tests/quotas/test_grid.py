"""The quota grid."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from quotas.models import User
from quotas.services import grid, limits
from quotas.services.limits import EVERYONE, Holder

pytestmark = pytest.mark.django_db

QUEUED = {"service_class": "batch", "name": "queued"}


def test_default_group_override_and_effective_stand_side_by_side(
    alice: User, bob: User, charlie: User, django_assert_num_queries: Callable
) -> None:
    """Three people, three sources, two queries."""
    limits.set_limit(holder=EVERYONE, value=10, per="person", **QUEUED)
    limits.set_limit(holder=Holder(group=alice.group), value=20, per="person", **QUEUED)
    own = limits.set_limit(holder=Holder(user=bob), value=5, **QUEUED)
    ends = timezone.now() + dt.timedelta(days=1)
    limits.set_limit(holder=Holder(user=bob), value=50, ends_at=ends, **QUEUED)
    with django_assert_num_queries(2):
        found = {row.user.username: row for row in grid.rows(who=grid.people(), **QUEUED)}

    shown = {
        name: (row.default, row.group and row.group.value, row.effective, row.effective_level)
        for name, row in found.items()
    }
    assert shown == {
        "alice": (10, 20, 20, "group"),
        "bob": (10, 20, 50, "user"),
        "charlie": (10, None, 10, "everyone"),
    }
    assert (found["bob"].override.value, found["bob"].override.ends_at) == (50, ends)
    assert found["bob"].lasting_edition == own.edition
    assert found["alice"].override is None


def test_the_grid_can_be_narrowed(alice: User, bob: User, charlie: User) -> None:
    """By group and by a part of the name."""
    assert {u.username for u in grid.people(group_id=alice.group_id)} == {"alice", "bob"}
    assert {u.username for u in grid.people(search="LI")} == {"alice", "charlie"}


def test_a_grid_of_a_misspelt_limit_is_refused() -> None:
    """The limits there are are named."""
    with pytest.raises(ValidationError, match="in_flight"):
        list(grid.rows(who=grid.people(), service_class="batch", name="inflight"))
