"""The audit trail."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pghistory
import pytest
from django.core.management import call_command
from pghistory.models import Events

from quotas.models import ApiKey, LimitRow, User
from quotas.services import keys, limits
from quotas.services.limits import Holder

pytestmark = pytest.mark.django_db


def diffs(thing: object) -> list[dict | None]:
    """Return what each event of a row changed."""
    return list(Events.objects.tracks(thing).order_by("pgh_id").values_list("pgh_diff", flat=True))


def test_a_bulk_edit_from_a_shell_is_in_the_trail(alice: User) -> None:
    """Rows changed behind the services' back are there with old and new."""
    row = limits.set_limit(
        holder=Holder(user=alice), service_class="batch", name="in_flight", value=3
    )
    LimitRow.objects.update(value=7)

    assert {"value": [3, 7]} in diffs(row)


def test_who_did_it_is_in_the_trail(alice: User, issue: Callable) -> None:
    """The context of a page or a command is kept with each change."""
    with pghistory.context(user=alice.pk):
        key = issue(alice).key

    assert Events.objects.tracks(key).get().pgh_context["user"] == alice.pk


def test_what_is_deleted_stays_in_the_trail(alice: User) -> None:
    """Clearing a limit leaves its last value."""
    holder = Holder(user=alice)
    limits.set_limit(holder=holder, service_class="batch", name="in_flight", value=3)
    limits.clear_limit(holder=holder, service_class="batch", name="in_flight")

    labels = list(LimitRow.pgh_event_model.objects.values_list("pgh_label", "value"))
    assert labels == [("insert", 3), ("delete", 3)]


def test_use_of_a_key_is_no_change_of_it(alice: User, issue: Callable) -> None:
    """Last use and digest are not in the trail; a rotation is, without any secret."""
    key = issue(alice).key
    ApiKey.objects.update(last_used_at="2026-11-20T10:00:00Z")
    keys.rotate(key=key)

    fields = {field.name for field in ApiKey.pgh_event_model._meta.fields}
    assert not fields & {"digest", "last_used_at"}
    assert len(diffs(key)) == 2


def test_a_command_signs_what_it_changes(alice: User) -> None:
    """An operator's edit names the command and the account it was typed in."""
    call_command(
        "setlimit", "--user=alice", "--in-flight=3", service_class="batch", stdout=StringIO()
    )

    context = Events.objects.tracks(LimitRow.objects.get()).get().pgh_context
    assert context["command"].startswith("setlimit by ")
