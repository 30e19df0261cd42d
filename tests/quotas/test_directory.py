"""Publishing the books to the gateways."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
import redis
from django.db import connections, transaction
from django.utils import timezone

from quotas import directory
from quotas.models import ApiKey, DirectoryVersion, User
from quotas.services import engines, keys, limits, people
from quotas.services.limits import Holder
from quotas.snapshots.directory import CHANGED, DIRECTORY, KEYS, fleet_from_json
from tests.quotas.helpers import published

pytestmark = pytest.mark.django_db(transaction=True)


def version(valkey: redis.Redis) -> int:
    """Return the version the gateways see."""
    return int(valkey.hget(DIRECTORY, "version") or 0)


def test_a_change_is_in_redis_when_the_service_returns(
    alice: User, valkey: redis.Redis, issue: Callable
) -> None:
    """Issue, limit, disable, revoke: each is published with its own version."""
    issued = issue(alice)
    first = version(valkey)
    assert published(valkey, issued.key.digest).state == "live"

    limits.set_limit(
        holder=Holder(user=alice), service_class="interactive", name="in_flight", value=5
    )
    assert published(valkey, issued.key.digest).interactive.person["in_flight"] == 5

    keys.disable(key=issued.key)
    assert published(valkey, issued.key.digest).state == "disabled"

    keys.revoke(key=issued.key)
    assert published(valkey, issued.key.digest).state == "revoked"
    assert version(valkey) == first + 3


def test_everything_of_a_publication_appears_together(
    alice: User, valkey: redis.Redis, issue: Callable
) -> None:
    """After a loss one MULTI brings generation, version, fleet and all keys back."""
    issued = issue(alice)
    engines.register(url="http://127.0.0.1:9", pool="tiny", kind="vllm", slots=8)
    lost = valkey.hget(DIRECTORY, "generation")
    valkey.flushall()

    assert directory.ensure_published()

    fleet = fleet_from_json(valkey.hget(DIRECTORY, "fleet"))
    assert [replica.slots for replica in fleet.replicas] == [8]
    assert fleet.version == version(valkey)
    assert published(valkey, issued.key.digest).user_name == "alice"
    assert valkey.hget(DIRECTORY, "generation") not in {None, lost}
    assert not directory.ensure_published()


def test_a_lost_publication_is_made_good(alice: User, valkey: redis.Redis, issue: Callable) -> None:
    """A process that dies between commit and publication leaves a directory that is behind."""
    issued = issue(alice)
    ApiKey.objects.filter(pk=issued.key.pk).update(disabled_at=timezone.now())
    DirectoryVersion.objects.update(version=version(valkey) + 1)

    assert directory.ensure_published()
    assert published(valkey, issued.key.digest).state == "disabled"


def test_a_change_is_kept_while_redis_is_away(alice: User, settings, tmp_path) -> None:
    """The books never fail because Redis does."""
    settings.REDIS_URL = f"unix://{tmp_path}/nobody-listens.sock"

    issued = keys.issue(owner=alice, name="laptop", service_class="batch")

    assert ApiKey.objects.filter(pk=issued.key.pk).exists()


def test_what_is_rolled_back_is_never_published(
    alice: User, valkey: redis.Redis, issue: Callable
) -> None:
    """A key that was not committed opens nothing."""
    issue(alice)
    before = version(valkey)
    with transaction.atomic():
        rolled_back = issue(alice, "other")
        transaction.set_rollback(True)

    assert published(valkey, rolled_back.key.digest) is None
    assert version(valkey) == before


def test_a_narrow_publication_after_a_missed_one_is_whole(
    alice: User, bob: User, valkey: redis.Redis, issue: Callable, monkeypatch
) -> None:
    """A change of Alice carries Bob's unpublished change along."""
    his = issue(bob)
    monkeypatch.setattr(directory, "publish_soon", lambda *_: None)
    keys.revoke(key=his.key)
    monkeypatch.undo()

    issue(alice)

    assert published(valkey, his.key.digest).state == "revoked"


def test_the_version_never_goes_back(alice: User, valkey: redis.Redis, issue: Callable) -> None:
    """A database put back from a backup is lifted above what the gateways have seen."""
    issue(alice)
    valkey.hset(DIRECTORY, "version", 5_000)

    assert directory.ensure_published()
    assert version(valkey) == 5_001

    issue(alice, "another")
    assert version(valkey) == 5_002


def test_a_limit_that_ends_is_published_at_its_end(
    alice: User, valkey: redis.Redis, issue: Callable
) -> None:
    """A time-limited raise ends by itself, without anybody touching the books."""
    issued = issue(alice)
    ends = timezone.now() + dt.timedelta(hours=1)
    limits.set_limit(
        holder=Holder(user=alice),
        service_class="interactive",
        name="in_flight",
        value=9,
        ends_at=ends,
    )
    assert published(valkey, issued.key.digest).interactive.person["in_flight"] == 9
    assert not directory.ensure_published(now=ends - dt.timedelta(seconds=1))

    assert directory.ensure_published(now=ends)

    assert "in_flight" not in published(valkey, issued.key.digest).interactive.person


def test_a_rotated_key_keeps_its_old_secret_until_the_shown_time(
    alice: User, valkey: redis.Redis, issue: Callable
) -> None:
    """Both secrets lead to the same key id; the old one carries its own end."""
    old = issue(alice)
    new = keys.rotate(key=old.key, overlap=dt.timedelta(hours=1))
    snapshot = published(valkey, old.key.digest)

    assert snapshot.key_id == published(valkey, new.key.digest).key_id == old.key.public_id
    assert snapshot.expires_at == pytest.approx(timezone.now().timestamp() + 3600, abs=5)

    newest = keys.rotate(key=new.key)
    assert published(valkey, new.key.digest) is None
    assert published(valkey, newest.key.digest).state == "live"


@pytest.mark.parametrize("stop", ["user", "group"])
def test_a_disabled_owner_stops_every_key(
    stop: str, alice: User, valkey: redis.Redis, issue: Callable
) -> None:
    """Whether the person or the whole group is disabled, also for an administrator."""
    alice.is_superuser = True
    alice.save()
    issued = issue(alice)

    if stop == "user":
        people.set_active(user=alice, is_active=False)
    else:
        people.set_group_active(group=alice.group, is_active=False)

    assert published(valkey, issued.key.digest).state == "owner_disabled"


def test_a_publication_is_announced(alice: User, valkey: redis.Redis, issue: Callable) -> None:
    """The channel carries the new version, so that gateways need not wait for their next look."""
    listener = valkey.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(CHANGED)
    listener.get_message(timeout=1)

    issue(alice)

    message = listener.get_message(timeout=2)
    listener.close()
    assert int(message["data"]) == version(valkey)


def test_publishing_costs_a_fixed_number_of_queries(
    alice: User, valkey: redis.Redis, django_assert_max_num_queries, issue: Callable
) -> None:
    """Fifty keys are published with as many queries as one."""
    issue(alice)
    with django_assert_max_num_queries(14) as one:
        directory.publish()
    for number in range(50):
        issue(alice, f"key {number}")
    with django_assert_max_num_queries(14) as many:
        directory.publish()

    assert len(many) == len(one)
    assert valkey.hlen(KEYS) == 51


def test_dead_secrets_leave_without_everybody_s_keys(
    alice: User, bob: User, valkey: redis.Redis, issue: Callable
) -> None:
    """Rotating and revoking one key writes that key alone, and its old secrets open nothing."""
    mine, others = issue(alice), issue(bob)
    valkey.hset(KEYS, others.key.digest, "not written again")
    hour = dt.timedelta(hours=1)

    second = keys.rotate(key=mine.key, overlap=hour)
    assert published(valkey, mine.key.digest).key_id == mine.key.public_id  # until the hour is over
    third = keys.rotate(key=second.key)
    assert published(valkey, second.key.digest) is None
    keys.revoke(key=third.key)

    assert published(valkey, third.key.digest).state == "revoked"
    assert set(valkey.hkeys(KEYS)) == {third.key.digest.encode(), others.key.digest.encode()}
    assert valkey.hget(KEYS, others.key.digest) == b"not written again"


@pytest.fixture(autouse=True)
def _one_connection() -> None:
    """Leave no pooled connection that outlives the test's database."""
    yield
    connections.close_all()
