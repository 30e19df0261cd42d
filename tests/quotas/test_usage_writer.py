"""The usage writer: every record once, whatever is lost on the way."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator

import pytest
import redis
from django.db import connection
from django.db.models import Sum

from quotas.models import ApiKey, UsageEvent, UsageHour
from quotas.services import usage
from quotas.snapshots.usage import EPOCH, FIELD, STREAM, WRITTEN
from quotas.usage_writer import BROKEN, UsageWriter
from tests.quotas.helpers import ARRIVED, append, record

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def writer(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[UsageWriter]:
    """Return a writer on empty stores; at the end hold the rollup against the rows."""
    monkeypatch.setattr("quotas.usage_writer.WAIT_MS", 1)
    yield UsageWriter()
    rows = UsageEvent.objects.aggregate(a=Sum("prompt_tokens"), b=Sum("completion_tokens"))
    hours = UsageHour.objects.aggregate(a=Sum("prompt_tokens"), b=Sum("completion_tokens"))
    assert rows == hours
    assert UsageEvent.objects.count() == (UsageHour.objects.aggregate(n=Sum("requests"))["n"] or 0)


def drain(writer: UsageWriter) -> None:
    """Let the writer work until the stream holds nothing new."""
    while writer.step():
        pass


def test_a_record_becomes_a_row_and_part_of_its_hour(
    writer: UsageWriter, valkey: redis.Redis
) -> None:
    """All fields arrive; unknown stays unknown; the stream is trimmed and the position told."""
    append(valkey, record(1, cached_tokens=None, reasoning_tokens=7, group_id="3"))
    last = valkey.xinfo_stream(STREAM)["last-generated-id"].decode()
    drain(writer)

    row = UsageEvent.objects.get()
    assert (row.prompt_tokens, row.cached_tokens, row.reasoning_tokens) == (100, None, 7)
    assert (row.group_id, row.user_id, row.outcome) == (3, 1, "served")
    hour = UsageHour.objects.get()
    assert hour.hour == ARRIVED.replace(minute=0)
    assert (hour.requests, hour.served, hour.prompt_tokens) == (1, 1, 100)
    epoch, run_id, stream_id = json.loads(valkey.get(WRITTEN))
    assert epoch == valkey.get(EPOCH).decode()
    assert (run_id, stream_id) == (valkey.info("server")["run_id"], last)
    assert valkey.xlen(STREAM) == 0


def test_a_copy_changes_nothing(writer: UsageWriter, valkey: redis.Redis) -> None:
    """A gateway that appends again what was written makes no second row and no second sum."""
    append(valkey, record(1), record(2), record(1))
    drain(writer)
    append(valkey, record(2), record(3))
    drain(writer)

    assert UsageEvent.objects.count() == 3
    assert UsageHour.objects.get().requests == 3


@pytest.mark.parametrize("together", [True, False])
def test_the_real_end_replaces_an_interrupted_one(
    writer: UsageWriter, valkey: redis.Redis, *, together: bool
) -> None:
    """The rollup moves by the difference, whether both copies come in one batch or in two."""
    reaped = record(1, outcome="interrupted", completion_tokens=5, ttft_ms=None)
    append(valkey, reaped)
    if not together:
        drain(writer)
    append(valkey, record(1))
    drain(writer)

    assert UsageEvent.objects.get().outcome == "served"
    hour = UsageHour.objects.get()
    assert (hour.requests, hour.served, hour.failed) == (1, 1, 0)
    assert (hour.completion_tokens, hour.ttft_count) == (20, 1)


def test_a_late_interrupted_copy_does_not_undo_the_real_end(
    writer: UsageWriter, valkey: redis.Redis
) -> None:
    """Only `interrupted` is ever replaced."""
    append(valkey, record(1))
    drain(writer)
    append(valkey, record(1, outcome="interrupted", completion_tokens=5))
    drain(writer)

    assert UsageEvent.objects.get().completion_tokens == 20


def test_a_crash_between_commit_and_publication_loses_and_doubles_nothing(
    writer: UsageWriter, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position is stored with the rows, so the next writer goes on behind it."""
    append(valkey, record(1))
    monkeypatch.setattr(UsageWriter, "_advance", lambda *_: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        writer.step()
    monkeypatch.undo()
    append(valkey, record(2))

    drain(UsageWriter())

    assert UsageEvent.objects.count() == 2
    assert json.loads(valkey.get(WRITTEN))[2] == usage.position().stream_id
    assert valkey.xlen(STREAM) == 0


def test_ids_of_an_emptied_redis_are_not_compared_with_older_ones(
    writer: UsageWriter, valkey: redis.Redis
) -> None:
    """After FLUSHALL a record with a smaller id is still read: it is another epoch."""
    append(valkey, record(1))
    drain(writer)
    valkey.flushall()
    valkey.xadd(STREAM, {FIELD: record(2).to_json()}, id="5-1")
    drain(writer)

    assert UsageEvent.objects.count() == 2
    assert usage.position().stream_id == "5-1"


def test_after_a_restart_of_redis_everything_left_is_read(
    writer: UsageWriter, valkey: redis.Redis
) -> None:
    """A restart from an older file keeps the epoch; its ids may have gone back."""
    append(valkey, record(1))
    drain(writer)
    row = usage.position()
    with connection.cursor() as cursor:  # as if an earlier run had written far ahead
        cursor.execute(
            "UPDATE usage_writer_position SET run_id = 'earlier', stream_id = '9999999999999-0'"
        )
    append(valkey, record(2))
    drain(writer)

    assert UsageEvent.objects.count() == 2
    assert usage.position().run_id == row.run_id


def test_two_writers_never_write_the_same_records(writer: UsageWriter, valkey: redis.Redis) -> None:
    """Whoever finds the position moved starts over from where it is now."""
    append(valkey, record(1))
    before = usage.position()
    drain(writer)

    with pytest.raises(usage.Overtaken):
        usage.write(parsed=[], before=before, after=usage.Position("x", "y", "9-9"))

    assert usage.position().epoch == valkey.get(EPOCH).decode()


def test_a_broken_entry_is_set_aside(writer: UsageWriter, valkey: redis.Redis) -> None:
    """What is no record stops nobody else's; odd texts and numbers are brought into range."""
    odd = record(2, model="m\0" + "x" * 500, prompt_tokens=-5, status=70_000, duration_ms=10**30)
    for raw in (b"", b"[]", b"\xff", b'{"request_id": 1}'):
        valkey.xadd(STREAM, {FIELD: raw})
    valkey.xadd(STREAM, {FIELD: record(3, arrived_at="yesterday").to_json()})
    append(valkey, record(1), odd)
    drain(writer)

    assert UsageEvent.objects.count() == 2
    assert UsageEvent.objects.get(request_id="req_000002").model == "m" + "x" * 199
    assert valkey.llen(BROKEN) == 5


def test_a_row_postgresql_refuses_is_found_alone(
    writer: UsageWriter, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a bad value pass our own checks, its batch is halted at that one record only."""
    monkeypatch.setattr("quotas.usage_rows.LARGEST", 2**70)
    append(valkey, record(1), record(2, prompt_tokens=2**65), record(3))
    for _ in range(10):
        try:
            writer.step()
        except usage.Overtaken:
            continue

    assert sorted(UsageEvent.objects.values_list("request_id", flat=True)) == [
        "req_000001",
        "req_000003",
    ]


def test_a_key_s_last_use_is_written_at_most_once_a_minute(
    writer: UsageWriter, valkey: redis.Redis, alice, issue
) -> None:
    """The latest arrival counts, and a second one within the minute writes nothing."""
    key = issue(alice).key

    def used(number: int) -> dt.datetime:
        append(valkey, record(number, key_id=key.public_id))
        drain(writer)
        return ApiKey.objects.get(pk=key.pk).last_used_at - ARRIVED

    assert [used(number).seconds for number in (1, 30, 59, 62, 5)] == [1, 1, 1, 62, 62]


def test_an_hour_is_one_of_the_reporting_zone(
    writer: UsageWriter, valkey: redis.Redis, settings
) -> None:
    """Where days begin at half past the hour of UTC, so do the hours of the rollup."""
    settings.TIME_ZONE = "Asia/Kolkata"
    append(valkey, record(1), record(2, arrived_at="2026-11-20T10:29:59+00:00"))
    drain(writer)

    hours = sorted(UsageHour.objects.values_list("hour", flat=True))
    assert [(hour.hour, hour.minute) for hour in hours] == [(9, 30), (10, 30)]


def test_rows_of_every_month_find_a_partition(writer: UsageWriter, valkey: redis.Redis) -> None:
    """A row far from the partitions made ahead goes into the default one."""
    far = record(2, arrived_at="2031-01-01T00:00:00+00:00")
    append(valkey, record(1), far)
    drain(writer)

    assert UsageEvent.objects.filter(arrived_at__year=2031).count() == 1
