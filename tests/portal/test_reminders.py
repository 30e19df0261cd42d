"""Mails about keys that expire soon."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from portal.keys import reminders
from quotas.services import keys

NOW = dt.datetime(2026, 11, 26, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("hours_left", "days"),
    [(15 * 24, None), (14 * 24, 14), (8 * 24, 14), (7 * 24, 7), (25, 7), (24, 1), (1, 1), (0, None),
     (-5, None)],
)  # fmt: skip
def test_a_reminder_is_due_at_fourteen_seven_and_one_day(hours_left: int, days: int | None) -> None:
    """
    The nearest reminder whose time has come is due; none for a key that is over.
    """
    assert reminders.due(NOW + dt.timedelta(hours=hours_left), NOW) == days


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url")
def test_an_owner_gets_three_mails_and_no_more(alice: Any) -> None:
    """
    Hourly runs over the last weeks of a key send three mails, which hold no secret.
    """
    issued = keys.issue(owner=alice, name="notebook", service_class="interactive")
    end = timezone.now() + dt.timedelta(days=90)
    for hours in range(20 * 24, -24, -6):
        reminders.send(end - dt.timedelta(hours=hours))

    assert [message.to for message in mail.outbox] == [["alice@example.org"]] * 3
    assert all(issued.secret not in message.body for message in mail.outbox)
    assert "notebook" in mail.outbox[0].subject


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url")
def test_revoked_keys_are_left_in_peace(alice: Any) -> None:
    """
    A key that no longer works is not worth a mail.
    """
    key = keys.issue(
        owner=alice, name="n", service_class="batch", lifetime=dt.timedelta(days=3)
    ).key
    keys.revoke(key=key)

    assert reminders.send(timezone.now()) == 0
