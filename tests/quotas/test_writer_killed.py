"""The usage writer as a process that is killed while records keep coming."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.db.models import Sum

from quotas.models import UsageEvent, UsageHour
from quotas.snapshots.usage import EPOCH, FIELD, STREAM, WRITTEN, UsageRecord
from tests.quotas.helpers import record

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.fault]
ROOT = Path(__file__).resolve().parents[2]


class Gateway:
    """Keeps records as a gateway does: until the published position has passed them."""

    def __init__(self, valkey: redis.Redis) -> None:
        self.valkey = valkey
        self.kept: OrderedDict[str, UsageRecord] = OrderedDict()
        self.stream = ("", "")

    def append(self, item: UsageRecord) -> None:
        self.kept[self._add(item)] = item

    def _add(self, item: UsageRecord) -> str:
        self.valkey.set(EPOCH, os.urandom(8).hex(), nx=True)
        return self.valkey.xadd(STREAM, {FIELD: item.to_json()}).decode()

    def look(self) -> None:
        """Drop what is written; append again what another stream cannot have."""
        here = (self.valkey.get(EPOCH), self.valkey.info("server")["run_id"])
        if here != self.stream:
            self.stream = here
            self.kept = OrderedDict((self._add(item), item) for item in self.kept.values())
        epoch, run_id, stream_id = json.loads(self.valkey.get(WRITTEN) or '["", "", "0-0"]')
        if (epoch.encode(), run_id) == here:
            passed = _order(stream_id)
            for kept in [entry for entry in self.kept if _order(entry) <= passed]:
                del self.kept[kept]


def _order(stream_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in stream_id.split("-"))


def _start_writer(redis_url: str, database: str) -> subprocess.Popen[bytes]:
    name = settings.DATABASES["default"]["NAME"]
    head, _, query = database.partition("?")
    url = f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    environ = {**os.environ, "REDIS_URL": redis_url, "DATABASE_URL": url}
    command = [sys.executable, "manage.py", "writeusage"]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)


def _run(valkey: redis.Redis, redis_url: str, database: str, *, kills: int, flushes: int) -> int:
    """Append records while the writer is killed and Redis emptied; return how many there were."""
    dice = random.Random(7)
    gateway = Gateway(valkey)
    number = 0
    events = ["kill"] * kills + ["flush"] * flushes
    dice.shuffle(events)
    writer = _start_writer(redis_url, database)
    try:
        for event in [*events, "end"]:
            until = time.monotonic() + 2.5 + dice.random()
            while time.monotonic() < until:
                for _ in range(20):
                    number += 1
                    gateway.append(record(number))
                gateway.look()
                time.sleep(0.1)
            if event == "kill":
                writer.kill()
                writer.wait()
                writer = _start_writer(redis_url, database)
            elif event == "flush":
                valkey.flushall()
        deadline = time.monotonic() + 20
        while gateway.kept and time.monotonic() < deadline:
            gateway.look()
            time.sleep(0.1)
        assert not gateway.kept
    finally:
        writer.send_signal(signal.SIGTERM)
        assert writer.wait(timeout=10) == 0
    return number


def _all_there_once(number: int) -> None:
    assert UsageEvent.objects.count() == number
    sums = UsageHour.objects.aggregate(n=Sum("requests"), tokens=Sum("prompt_tokens"))
    assert sums == {"n": number, "tokens": 100 * number}


def test_no_row_is_lost_or_doubled(valkey: redis.Redis, redis_url: str, database: str) -> None:
    """Two kills of the writer and one emptied Redis under 200 records per second."""
    _all_there_once(_run(valkey, redis_url, database, kills=2, flushes=1))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_row_is_lost_or_doubled_in_the_long_run(
    valkey: redis.Redis, redis_url: str, database: str
) -> None:
    """Twenty kills of the writer and five emptied Redis under 200 records per second."""
    _all_there_once(_run(valkey, redis_url, database, kills=20, flushes=5))


def _cut_connections() -> None:
    """End every other connection to the test's database, as a restart of PostgreSQL does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_row_is_readable_soon_and_cut_connections_lose_none(
    valkey: redis.Redis, redis_url: str, database: str
) -> None:
    """PostgreSQL drops the writer ten times; each record is a row within seconds, once."""
    gateway = Gateway(valkey)
    writer = _start_writer(redis_url, database)
    number = 0
    try:
        gateway.append(record(number := number + 1))
        _wait_for_rows(number, within_s=20)  # the writer has started
        for _ in range(10):
            for _ in range(40):
                gateway.append(record(number := number + 1))
            _cut_connections()
            time.sleep(0.2)
        _wait_for_rows(number, within_s=10)
        gateway.append(record(number := number + 1))
        _wait_for_rows(number, within_s=2)
    finally:
        writer.send_signal(signal.SIGTERM)
        assert writer.wait(timeout=10) == 0
    _all_there_once(number)


def _wait_for_rows(number: int, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while UsageEvent.objects.count() < number:
        assert time.monotonic() < deadline, f"{number} rows were not there in {within_s} s"
        time.sleep(0.05)
