"""Keys: what they allow, and what nothing brings back."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import time_machine
from django.core.exceptions import ValidationError
from django.db import connection, connections
from django.utils import timezone

from quotas.models import ApiKey, OldSecret, User
from quotas.services import keys
from quotas.snapshots import keyformat

pytestmark = pytest.mark.django_db


def test_a_key_expires_after_ninety_days_unless_said_otherwise(
    alice: User, issue: Callable
) -> None:
    """Nobody gets a key for ever by not thinking about it."""
    key = issue(alice).key

    assert (key.expires_at - timezone.now()).days in {89, 90}
    assert issue(alice, "forever", lifetime=None).key.expires_at is None


@pytest.mark.parametrize("days", [0, -1, 3651, 10**8])
def test_a_lifetime_out_of_range_is_refused(days: int, alice: User, issue: Callable) -> None:
    """Zero, the past and the far future are errors, never a key without an end."""
    with pytest.raises(ValidationError):
        issue(alice, lifetime=dt.timedelta(days=days))
    assert not ApiKey.objects.exists()


def test_the_secret_is_stored_nowhere(alice: User, issue: Callable) -> None:
    """Neither the key's row nor the audit trail holds it, and its repr does not show it."""
    issued = issue(alice)
    keys.rename(key=issued.key, name="desktop")
    rotated = keys.rotate(key=issued.key, overlap=dt.timedelta(hours=1))
    dump = ""
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT string_agg(t::text, chr(10)) FROM "{table}" t')
            dump += cursor.fetchone()[0] or ""

    assert "desktop" in dump
    for secret in (issued.secret, rotated.secret):
        assert secret[10:-4] not in dump
        assert secret not in repr(issued) + repr(rotated)


def test_one_live_name_per_owner(alice: User, bob: User, issue: Callable) -> None:
    """A name is taken until its key is revoked; others may use it too."""
    first = issue(alice)
    issue(bob)
    with pytest.raises(ValidationError):
        issue(alice)

    keys.revoke(key=first.key)

    assert issue(alice).key.name == first.key.name


def test_revoking_is_final(alice: User, issue: Callable) -> None:
    """Nothing un-revokes, extends, renames or rotates a revoked key; its old secrets are gone."""
    issued = issue(alice)
    keys.rotate(key=issued.key, overlap=dt.timedelta(days=1))
    keys.revoke(key=issued.key)
    when = keys.revoke(key=issued.key).revoked_at

    for change in (
        lambda: keys.enable(key=issued.key),
        lambda: keys.extend(key=issued.key, lifetime=None),
        lambda: keys.rename(key=issued.key, name="x"),
        lambda: keys.rotate(key=issued.key),
    ):
        with pytest.raises(ValidationError):
            change()
    assert ApiKey.objects.get().revoked_at == when
    assert not OldSecret.objects.exists()


def test_an_expired_key_is_not_re_armed_with_its_old_secret(alice: User, issue: Callable) -> None:
    """Extending is for live keys; an expired one gets a new secret and the old one stays dead."""
    issued = issue(alice, lifetime=dt.timedelta(days=1))
    with time_machine.travel(timezone.now() + dt.timedelta(days=2)):
        with pytest.raises(ValidationError):
            keys.extend(key=issued.key, lifetime=dt.timedelta(days=1))
        rotated = keys.rotate(key=issued.key, overlap=dt.timedelta(days=1))

    assert rotated.key.public_id == issued.key.public_id
    assert not OldSecret.objects.exists()


def test_the_overlap_ends_no_later_than_the_old_secret_would_have(
    alice: User, issue: Callable
) -> None:
    """Rotation does not lengthen the life of the secret it replaces."""
    issued = issue(alice, lifetime=dt.timedelta(hours=1))
    keys.rotate(key=issued.key, overlap=dt.timedelta(days=7))

    assert OldSecret.objects.get().valid_until == issued.key.expires_at


def test_a_rotated_secret_keeps_the_class(alice: User, issue: Callable) -> None:
    """The class is a property of the key and shows in each of its secrets."""
    issued = issue(alice, service_class="batch")

    assert keys.rotate(key=issued.key).secret.startswith(keyformat.PREFIXES["batch"])


def test_only_application_keys_name_a_header(alice: User, issue: Callable) -> None:
    """From any other key an end-user header could never count."""
    with pytest.raises(ValidationError):
        issue(alice, end_user_header="X-User")

    key = issue(alice, kind="application", end_user_header="X-User").key
    assert key.end_user_header == "X-User"


@pytest.mark.parametrize("name", ["", "   ", "x" * 101])
def test_a_key_needs_a_name_of_at_most_a_hundred_characters(
    name: str, alice: User, issue: Callable
) -> None:
    """Without a name nobody knows later what to revoke."""
    with pytest.raises(ValidationError):
        issue(alice, name)


@pytest.mark.django_db(transaction=True)
def test_ten_forms_at_once_make_no_key_too_many(
    alice: User, valkey: redis.Redis, issue: Callable
) -> None:
    """The most keys a person may have are counted under the lock under which one is made."""

    def send(number: int) -> bool:
        try:
            issue(alice, f"key {number}", most=3)
        except ValidationError:
            return False
        finally:
            connections.close_all()
        return True

    with ThreadPoolExecutor(10) as forms:
        assert Counter(forms.map(send, range(10))) == {True: 3, False: 7}
    assert alice.keys.count() == 3
    connections.close_all()
