"""Mails at 80 and 100 % of a day's or month's limit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.core import mail

from quotas import quota_mail
from quotas.models import User
from quotas.services import limits, usage
from quotas.services.limits import Holder
from quotas.usage_rows import parse
from tests.quotas.helpers import record

pytestmark = pytest.mark.django_db(transaction=True)
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
EACH = 120  # tokens of one record


def use(first: int, count: int, **fields: object) -> None:
    usage.write(
        parsed=[parse(record(first + n, **fields).to_json()) for n in range(count)],
        before=usage.position(),
        after=usage.Position("e", "r", f"{first}-0"),
    )


def limit(value: int, per: str = "person", name: str = "tokens_per_day", **holder: object) -> None:
    limits.set_limit(
        holder=Holder(**holder), service_class="interactive", name=name, value=value, per=per
    )


def test_each_mark_is_told_once_in_a_window(redis_url: str, alice: User) -> None:
    """80, then 100 %, then silence until the next day."""
    limit(10 * EACH, user=alice)
    mine = {"user_id": str(alice.pk)}
    use(1, 7, **mine)
    assert quota_mail.send(NOW) == 0
    use(8, 1, **mine)
    assert [quota_mail.send(NOW), quota_mail.send(NOW)] == [1, 0]
    use(9, 2, **mine)
    assert [quota_mail.send(NOW), quota_mail.send(NOW)] == [1, 0]
    assert quota_mail.send(NOW + dt.timedelta(days=1)) == 0

    assert [m.to for m in mail.outbox] == [[alice.email]] * 2
    assert mail.outbox[0].subject == "80 % of your tokens per day are used"
    assert "1,200 of 1,200 tokens are used for you" in mail.outbox[1].body
    assert "2026-11-21 00:00 (UTC)" in mail.outbox[1].body


def test_a_group_s_owners_and_a_key_s_owner_are_told_and_nobody_else(
    redis_url: str, alice: User, bob: User, issue: Callable
) -> None:
    """Who does not want mail gets none; 100 % at once is one mail, not two."""
    key = issue(bob).key
    alice.group.owners.add(alice)
    limit(2 * EACH, "group", "tokens_per_month", group=alice.group)
    limit(EACH, "key", key=key)
    use(1, 2, user_id=str(bob.pk), key_id=key.public_id, group_id=str(alice.group_id))
    assert quota_mail.send(NOW) == 2
    assert sorted(m.to[0] for m in mail.outbox) == [alice.email, bob.email]

    User.objects.update(wants_quota_mail=False)
    mail.outbox.clear()
    assert quota_mail.send(NOW + dt.timedelta(days=20)) == 0
    assert mail.outbox == []


def test_an_application_s_owner_is_told_of_its_end_users(redis_url: str, alice: User) -> None:
    """Who stands behind an application key has a day of their own, and no address."""
    limit(2 * EACH, user=alice)
    use(1, 2, user_id=f"{alice.pk}/ann", end_user="ann")
    use(3, 1, user_id=f"{alice.pk}/ben", end_user="ben")

    assert [quota_mail.send(NOW), quota_mail.send(NOW)] == [1, 0]
    assert "used for an end user of your application key (ann)" in mail.outbox[0].body
