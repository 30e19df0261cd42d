"""A migration never stops a busy database, and two never run at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.executor import MigrationExecutor

from portal import preparation
from portal.batches.models import BatchItem, BatchJob
from quotas.models import UsageEvent
from tests.batches.helpers import ApiClient, lines
from tests.portal.usage import event

pytestmark = pytest.mark.django_db(transaction=True)
MILLION = 1_000_000
ALTER = "ALTER TABLE batch_item ADD COLUMN of_a_migration integer"


def in_a_thread(act: Any) -> threading.Thread:
    """Start it on a connection of its own."""

    def run() -> None:
        try:
            act()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_migration_gives_up_soon_behind_a_long_reader(
    bob: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While somebody reads a table in an open transaction, a migration that wants to change it fails
    after seconds; those who read meanwhile are not held for longer, and the next try succeeds.
    """
    reads, over = threading.Event(), threading.Event()

    def reader() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT count(*) FROM batch_item")
            reads.set()
            over.wait(30)
            cursor.execute("ROLLBACK")

    def change(*_: object, **__: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(ALTER)

    monkeypatch.setattr(preparation, "call_command", change)
    holder = in_a_thread(reader)
    assert reads.wait(10)
    began = time.monotonic()
    failed: list[Exception] = []

    def migrate() -> None:
        try:
            preparation.migrate()
        except OperationalError as error:
            failed.append(error)

    migration = in_a_thread(migrate)
    time.sleep(0.5)
    BatchItem.objects.count()  # stands behind the migration's wish for the table
    waited_s = time.monotonic() - began
    migration.join(30)
    over.set()
    holder.join(10)

    assert "lock timeout" in str(failed[0])
    assert waited_s < 15
    preparation.migrate()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE batch_item DROP COLUMN of_a_migration")


def test_two_migrations_take_turns(bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits until the first has ended."""
    inside: list[str] = []

    def slow(*_: object, **__: object) -> None:
        inside.append("in")
        time.sleep(0.3)
        inside.append("out")

    monkeypatch.setattr(preparation, "call_command", slow)
    for thread in [in_a_thread(preparation.migrate) for _ in range(3)]:
        thread.join(30)

    assert inside == ["in", "out"] * 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_migration_takes_seconds_on_a_million_rows(api: ApiClient) -> None:
    """
    With a million rows of usage and a batch of a million lines, every migration since the tables
    were made ends within ten seconds.
    """
    job = BatchJob.objects.get(public_id=api.submit(lines(1)))
    event(api.key.owner_id, 1).save(force_insert=True)
    call_command("migrate", "batches", "0001_initial", verbosity=0)
    call_command("migrate", "quotas", "0003_capacity", verbosity=0)
    try:
        columns = ", ".join(f'"{f.column}"' for f in UsageEvent._meta.fields[1:])
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO usage_event (request_id, {columns}) SELECT 'r' || n, {columns} "
                "FROM usage_event CROSS JOIN generate_series(1, %s) AS n",
                [MILLION],
            )
            cursor.execute(
                'INSERT INTO batch_item (job_id, line_no, run_order, custom_id, "offset", length,'
                " state, attempt, failures, lease_owner, problem)"
                " SELECT %s, n, n, 'c' || n, 0, 1, 'queued', 0, 0, '', ''"
                " FROM generate_series(2, %s) AS n",
                [job.pk, MILLION],
            )
        took = timed_migrations()
    finally:
        call_command("migrate", verbosity=0)

    print({f"{app}.{name}": round(seconds, 1) for (app, name), seconds in took.items()})
    assert len(took) >= 5
    assert max(took.values()) < 10


def timed_migrations() -> dict[tuple[str, str], float]:
    """Apply what is not applied, one by one; return how long each took."""
    took = {}
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    for migration, _ in plan:
        began = time.monotonic()
        MigrationExecutor(connection).migrate([(migration.app_label, migration.name)])
        took[migration.app_label, migration.name] = time.monotonic() - began
    return took
