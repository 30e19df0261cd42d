"""The usage writer as a process that is killed while records keep coming, its stores as well."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import redis
from django.conf import settings
from django.db import connection

from portal.stores.embedded import start_postgres, start_valkey
from quotas.models import UsageEvent
from quotas.snapshots.usage import EPOCH, FIELD, STREAM, WRITTEN, UsageRecord
from tests.quotas.helpers import record
from tests.rig.seeding import seed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.fault]
ROOT = Path(__file__).resolve().parents[2]
A_SECOND = 200  # records


class Gateway:
    """Keeps records as a gateway does: until the published position has passed them."""

    def __init__(self, valkey: redis.Redis) -> None:
        self.valkey = valkey
        self.kept: OrderedDict[str, UsageRecord] = OrderedDict()
        self.stream = ("", "")

    def append(self, item: UsageRecord) -> None:
        self.kept[self._add(item)] = item

    def _add(self, item: UsageRecord) -> str:
        with self.valkey.pipeline(transaction=True) as pipe:
            pipe.set(EPOCH, os.urandom(8).hex(), nx=True)
            pipe.xadd(STREAM, {FIELD: item.to_json()})
            found: list[bytes] = pipe.execute()
        return found[1].decode()

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


@pytest.fixture
def books(database: str) -> str:
    """Return the address of the database these tests work in."""
    head, _, query = database.partition("?")
    name = settings.DATABASES["default"]["NAME"]
    return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")


def _start_writer(redis_url: str, books: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "REDIS_URL": redis_url, "DATABASE_URL": books}
    command = [sys.executable, "manage.py", "writeusage"]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)


def _append_until(gateway: Gateway, number: int, until_s: float) -> int:
    """Append records at a steady rate, whatever it takes; return the last one's number."""
    began_s, first = time.monotonic(), number
    while (now_s := time.monotonic()) < until_s:
        while number - first < (now_s - began_s) * A_SECOND:
            number += 1
            gateway.append(record(number))
        gateway.look()
        time.sleep(0.05)
    return number


def _run(redis_url: str, books: str, events: list[str], crash: Callable[[], None]) -> int:
    """Append records while things happen in a random order; return how many there were."""
    dice = random.Random(7)
    dice.shuffle(events)
    valkey = redis.Redis.from_url(redis_url)
    gateway, number = Gateway(valkey), 0
    writer = _start_writer(redis_url, books)
    try:
        for event in [*events, "end"]:
            number = _append_until(gateway, number, time.monotonic() + 2.5 + dice.random())
            if event == "kill":
                writer.kill()
                writer.wait()
                writer = _start_writer(redis_url, books)
            elif event == "flush":
                valkey.flushall()
            elif event == "crash":
                crash()
        deadline = time.monotonic() + 30
        while gateway.kept and time.monotonic() < deadline:
            gateway.look()
            time.sleep(0.1)
        assert not gateway.kept
    finally:
        writer.send_signal(signal.SIGTERM)
        assert writer.wait(timeout=10) == 0
    return number


def _all_there_once(books: str, number: int) -> None:
    with psycopg.connect(books) as link:
        rows = link.execute("SELECT count(*), count(DISTINCT request_id) FROM usage_event")
        hours = link.execute("SELECT sum(requests), sum(prompt_tokens) FROM usage_hour")
        assert rows.fetchone() == (number, number)
        assert hours.fetchone() == (number, 100 * number)


def test_no_row_is_lost_or_doubled(redis_url: str, books: str) -> None:
    """Two kills of the writer and one emptied Redis under 200 records per second."""
    events = ["kill"] * 2 + ["flush"]
    _all_there_once(books, _run(redis_url, books, events, crash=lambda: None))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_row_is_lost_or_doubled_in_the_long_run(tmp_path: Path) -> None:
    """
    Twenty kills of the writer, ten of PostgreSQL and five emptied Redis in a random order, under
    200 records per second.
    """
    seed(tmp_path)
    postgres, valkey = start_postgres(tmp_path), start_valkey(tmp_path, durable=False)

    def crash() -> None:
        nonlocal postgres
        postgres.process.kill()
        postgres.process.wait()
        postgres = start_postgres(tmp_path)

    events = ["kill"] * 20 + ["crash"] * 10 + ["flush"] * 5
    try:
        number = _run(valkey.url, postgres.url, events, crash)
        _all_there_once(postgres.url, number)
        print(f"{number} records, each of them there once")
    finally:
        postgres.stop()
        valkey.stop()


def _cut_connections() -> None:
    """End every other connection to the test's database, as a restart of PostgreSQL does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_row_is_readable_soon_and_cut_connections_lose_none(
    valkey: redis.Redis, redis_url: str, books: str
) -> None:
    """PostgreSQL drops the writer ten times; each record is a row within seconds, once."""
    gateway = Gateway(valkey)
    writer = _start_writer(redis_url, books)
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
    _all_there_once(books, number)


def _wait_for_rows(number: int, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while UsageEvent.objects.count() < number:
        assert time.monotonic() < deadline, f"{number} rows were not there in {within_s} s"
        time.sleep(0.05)
