"""Months of usage: made ahead of time, dropped when their retention is over.

A month is a partition of `usage_event` by `arrived_at` (UTC). The hourly rollup outlives it, so
sums of old months stay in the reports after the single requests are gone.
"""

from __future__ import annotations

import datetime as dt
import re

from django.conf import settings
from django.db import connection, transaction

PARENT = "usage_event"
DEFAULT = "usage_event_default"
AHEAD = 3  # months kept ready
_NAME = re.compile(r"usage_event_(\d{4})_(\d{2})")
# A partition is attached under a lock on the whole table: never wait for it behind a long
# query with everybody else waiting behind us.
_TIMEOUT = "SET LOCAL lock_timeout = '4s'"


def ensure(*, now: dt.datetime, ahead: int = AHEAD) -> list[str]:
    """Make the partitions of this month and the next ones; return the names of new ones.

    Rows of a month that came before its partition sit in the default one and are moved along.
    """
    existing = set(names())
    first = _number(now)
    wanted = {_name(month): month for month in range(first, first + ahead + 1)}
    made = [name for name in wanted if name not in existing]
    for name in made:
        _make(name, wanted[name])
    return made


def drop_before(*, now: dt.datetime, months: int) -> list[str]:
    """Drop the partitions of months that ended more than `months` months ago."""
    oldest = _number(now) - months
    gone = [name for name in names() if (month := _month(name)) is not None and month < oldest]
    for name in gone:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_TIMEOUT)
            cursor.execute(f"DROP TABLE {name}")
    cut = _start(oldest)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {DEFAULT} WHERE arrived_at < %s", [cut])  # noqa: S608
        cursor.execute("DELETE FROM usage_rejected_minute WHERE minute < %s", [cut])
    return gone


def names() -> list[str]:
    """Return the monthly partitions there are, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = %s::regclass ORDER BY 1",
            [PARENT],
        )
        return [name for (name,) in cursor.fetchall() if _NAME.fullmatch(name)]


def retention_months() -> int:
    """Return how long single requests are kept; 0 means for ever."""
    months: int = getattr(settings, "USAGE_RETENTION_MONTHS", 13)
    return months


def _make(name: str, month: int) -> None:
    start, end = _start(month), _start(month + 1)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_TIMEOUT)
        cursor.execute(f"CREATE TABLE {name} (LIKE {PARENT} INCLUDING ALL)")
        moved = f"DELETE FROM {DEFAULT} WHERE arrived_at >= %s AND arrived_at < %s RETURNING *"  # noqa: S608
        cursor.execute(
            f"WITH moved AS ({moved}) INSERT INTO {name} SELECT * FROM moved",  # noqa: S608
            [start, end],
        )
        cursor.execute(
            f"ALTER TABLE {PARENT} ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)",
            [start.isoformat(), end.isoformat()],
        )


def _number(at: dt.datetime) -> int:
    at = at.astimezone(dt.UTC)
    return at.year * 12 + at.month - 1


def _name(month: int) -> str:
    return f"{PARENT}_{month // 12:04}_{month % 12 + 1:02}"


def _month(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return int(match[1]) * 12 + int(match[2]) - 1 if match else None


def _start(month: int) -> dt.datetime:
    return dt.datetime(month // 12, month % 12 + 1, 1, tzinfo=dt.UTC)
