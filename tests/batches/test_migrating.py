"""A migration never stops a busy database, and two never run at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import OperationalError, connection

from portal import preparation
from portal.batches.models import BatchItem

pytestmark = pytest.mark.django_db(transaction=True)
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
