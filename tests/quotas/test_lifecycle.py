"""Accounts that come by invitation, end by date, and are erased on request."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.utils import timezone

from quotas.models import ApiKey, Group, User
from quotas.picture import Scope, take
from quotas.services import invites, keys, people, privacy, requests, usage
from quotas.usage_rows import parse
from tests.quotas.helpers import record

pytestmark = pytest.mark.django_db

DAY = dt.timedelta(days=1)
PASSWORD = "a long and odd sentence"


def invite(group: Group, by: User, seats: int = 2, **more: object) -> invites.MadeInvite:
    """Make an invitation for a day."""
    return invites.make(group=group, seats=seats, ends_at=timezone.now() + DAY, by=by, **more)


def accept(token: str, name: str) -> User:
    """Join by a link."""
    return invites.accept(token=token, username=name, password=PASSWORD)


def test_a_link_makes_as_many_accounts_as_it_has_seats(group: Group, admin: User) -> None:
    """Each joins the group with the end the link gives; the next one is refused."""
    end = timezone.now() + 30 * DAY
    made = invite(group, admin, accounts_end_at=end)

    joined = [accept(made.token, name) for name in ("dora", "emil")]

    assert {(user.group, user.ends_at) for user in joined} == {(group, end)}
    assert invites.find(token=made.token) is None
    with pytest.raises(ValidationError, match="seat"):
        accept(made.token, "finn")


def test_a_weak_password_takes_no_seat(group: Group, admin: User) -> None:
    """What is refused leaves the seat free."""
    made = invite(group, admin)
    with pytest.raises(ValidationError):
        invites.accept(token=made.token, username="dora", password="dora")

    made.invite.refresh_from_db()
    assert made.invite.taken == 0


def test_a_revoked_or_unknown_link_opens_nothing(group: Group, admin: User) -> None:
    """Both look the same from outside."""
    made = invite(group, admin)
    invites.revoke(invite=made.invite)

    for token in (made.token, "guess"):
        assert invites.find(token=token) is None
        with pytest.raises(ValidationError, match="does not work"):
            accept(token, "dora")


def test_only_owners_and_administrators_invite(group: Group, alice: User, bob: User) -> None:
    """A member without the right makes no links."""
    with pytest.raises(ValidationError):
        invite(group, alice)
    group.owners.add(bob)

    assert invite(group, bob).invite.made_by == bob


def test_an_account_s_end_stops_its_keys_at_that_second(
    group: Group, alice: User, issue: Callable
) -> None:
    """The gateways need no task to run; the sign-in follows by one."""
    key = issue(alice).key
    end = timezone.now() + DAY
    User.objects.filter(pk=alice.pk).update(ends_at=end)

    def state(now: dt.datetime) -> str:
        scope = Scope(user_ids=frozenset({alice.pk}))
        return take(now, 1, scope).keys[key.digest].state

    assert state(end - dt.timedelta(seconds=1)) == "live"
    assert state(end) == "owner_disabled"
    assert take(timezone.now(), 1, None).next_change == end.timestamp()
    assert people.end_accounts(now=end) == 1
    assert not User.objects.get(pk=alice.pk).is_active


def test_erasing_leaves_numbers_and_no_name(
    group: Group, alice: User, admin: User, issue: Callable
) -> None:
    """No table holds the person's name, address or words any more; usage stays."""
    User.objects.filter(pk=alice.pk).update(username="wilhelmina", email="wilhelmina@example.org")
    alice.refresh_from_db()
    key = issue(alice, "wilhelmina's laptop").key
    keys.rename(key=key, name="laptop of wilhelmina")
    requests.ask(
        user=alice,
        service_class="batch",
        name="in_flight",
        value=5,
        reason="wilhelmina's paper",
        until=timezone.now() + DAY,
    )
    written = record(1, user_id=str(alice.pk), key_id=key.public_id)
    usage.write(
        parsed=[parse(written.to_json())], before=usage.position(), after=usage.Position("e")
    )

    privacy.erase(user=alice)

    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT count(*) FROM "{table}" t WHERE t::text ~* %s', ["wilhelmina"])
            assert cursor.fetchone()[0] == 0, table
    assert ApiKey.objects.get().revoked_at is not None
    assert privacy.erase(user=alice).erased_at is not None
    assert [row.prompt_tokens for row in privacy.my_requests(user=alice)] == [100]


def test_the_last_administrator_cannot_be_erased(admin: User) -> None:
    """Somebody must be able to come in."""
    with pytest.raises(ValidationError):
        privacy.erase(user=admin)


def test_my_data_holds_no_secret_and_nobody_else_s(alice: User, bob: User, issue: Callable) -> None:
    """A person takes along their own keys' names, not digests, and only theirs."""
    mine, his = issue(alice), issue(bob, "bob's")
    found = str(privacy.my_data(user=alice))

    assert mine.key.public_id in found
    assert his.key.public_id not in found
    assert mine.key.digest not in found
    assert "password" not in found


def test_a_rotation_sent_twice_rotates_once(alice: User, issue: Callable) -> None:
    """The second form speaks of a secret that is no longer the key's."""
    issued = issue(alice)
    seen = issued.key.masked
    first = keys.rotate(key=issued.key, seen_masked=seen)

    with pytest.raises(ValidationError, match="meanwhile"):
        keys.rotate(key=issued.key, seen_masked=seen)

    assert ApiKey.objects.get().digest == first.key.digest
