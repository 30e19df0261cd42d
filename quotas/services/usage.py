"""Writes usage: rows, rollup and position in one transaction, each request counted once.

The usage writer is the only caller. Rows come by COPY into a temporary table; those that are new
go into `usage_event` and are added to `usage_hour`; a stored `interrupted` row is replaced by the
request's real end and the rollup is corrected by the difference. Everything else is a copy of
what is already there and changes nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import DataError, IntegrityError, connection, transaction

from quotas.models import WriterPosition
from quotas.usage_rows import COLUMNS, TYPES, Parsed, latest

_STAGING = """
    CREATE TEMPORARY TABLE IF NOT EXISTS usage_staging (LIKE usage_event) ON COMMIT DELETE ROWS;
    DELETE FROM usage_staging
"""
_COLUMNS = ", ".join(COLUMNS)


def copy_into(table: str) -> str:
    """Return the COPY of rows into a table.

    As bytes of the server's own form: less than half of the time that numbers as text, only to
    be read again, take here.
    """
    return f"COPY {table} ({_COLUMNS}) FROM STDIN (FORMAT BINARY)"


_COPY = copy_into("usage_staging")

_GROUP = "user_id, group_id, key_id, model, service_class, batch_id, end_user"
# What one row adds to each sum of its hour.
_SUMS = {
    "requests": "1",
    "served": "(outcome = 'served')::int",
    "failed": "(outcome IN ('failed', 'interrupted'))::int",
    "aborted": "(outcome = 'aborted')::int",
    "evicted": "(outcome LIKE 'evicted%%')::int",
    "estimated": "estimated::int",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "coalesce(cached_tokens, 0)",
    "completion_tokens": "completion_tokens",
    "reasoning_tokens": "coalesce(reasoning_tokens, 0)",
    "queue_wait_ms": "coalesce(queue_wait_ms, 0)",
    "ttft_ms": "coalesce(ttft_ms, 0)",
    "ttft_count": "(ttft_ms IS NOT NULL)::int",
    "duration_ms": "duration_ms",
}


def _roll(source: str) -> str:
    """Return the statement that adds `source` (rows with a `sign`) to the hours."""
    sums = ", ".join(f"sum(sign * {what})" for what in _SUMS.values())
    added = ", ".join(f"{name} = usage_hour.{name} + excluded.{name}" for name in _SUMS)
    return f"""
        INSERT INTO usage_hour (hour, {_GROUP}, {", ".join(_SUMS)})
        SELECT date_trunc('hour', arrived_at, %(zone)s), {_GROUP}, {sums}
        FROM {source} GROUP BY 1, {_GROUP}
        ON CONFLICT ON CONSTRAINT usage_hour_once DO UPDATE SET {added}
    """  # noqa: S608


# Nearly always every record is new. Then neither a conflict has to be looked for row by row nor
# what was inserted be handed back, which is a quarter of the whole.
_ALL = f"INSERT INTO usage_event ({_COLUMNS}) SELECT {_COLUMNS} FROM usage_staging"  # noqa: S608
_ROLL_ALL = _roll("(SELECT *, 1 AS sign FROM usage_staging) AS fresh")
_INSERT = f"""
    WITH fresh AS (
        INSERT INTO usage_event ({_COLUMNS}) SELECT {_COLUMNS} FROM usage_staging
        ON CONFLICT (request_id, arrived_at) DO NOTHING
        RETURNING *, 1 AS sign
    ), rolled AS ({_roll("fresh")} RETURNING 1)
    SELECT count(*) FROM fresh
"""  # noqa: S608

_CHANGED = [name for name in COLUMNS if name not in {"request_id", "arrived_at"}]
_REPLACE = f"""
    WITH before AS (
        SELECT e.* FROM usage_event e JOIN usage_staging s USING (request_id, arrived_at)
        WHERE e.outcome = 'interrupted' AND s.outcome <> 'interrupted'
    ), after AS (
        UPDATE usage_event e SET {", ".join(f"{name} = s.{name}" for name in _CHANGED)}
        FROM usage_staging s
        WHERE e.request_id = s.request_id AND e.arrived_at = s.arrived_at
          AND e.outcome = 'interrupted' AND s.outcome <> 'interrupted'
        RETURNING e.*
    ), difference AS (
        SELECT *, 1 AS sign FROM after UNION ALL SELECT *, -1 FROM before
    ), rolled AS ({_roll("difference")} RETURNING 1)
    SELECT count(*) FROM after
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream is written; ids of two epochs or two server runs are not comparable."""

    epoch: str = ""
    run_id: str = ""
    stream_id: str = "0-0"


@dataclass(frozen=True, slots=True)
class Written:
    """What one transaction changed."""

    fresh: int
    replaced: int
    copies: int


class Overtaken(Exception):
    """Another writer moved the position; read it again and start over."""


def position() -> Position:
    """Return how far the stream is written."""
    row = WriterPosition.objects.first()
    return Position() if row is None else Position(row.epoch, row.run_id, row.stream_id)


def write(*, parsed: Sequence[Parsed], before: Position, after: Position) -> Written:
    """Write the records and move the position from `before` to `after`, or change nothing."""
    records = latest(parsed)
    with transaction.atomic():
        with connection.cursor() as cursor:
            # The stream is trimmed behind this commit, so it must survive a crash of the server
            # also where everything else may lose its last fraction of a second.
            cursor.execute("SET LOCAL synchronous_commit = on")
        _move(before, after)
        if not records:
            return Written(0, 0, 0)
        with connection.cursor() as cursor:
            cursor.execute(_STAGING)
            _stage(cursor, records)
            zone = {"zone": settings.TIME_ZONE}
            if _are_all_new(cursor, zone):
                return Written(len(records), 0, len(parsed) - len(records))
            fresh = _count(cursor, _INSERT, zone)
            replaced = _count(cursor, _REPLACE, zone) if fresh < len(records) else 0
    return Written(fresh, replaced, len(parsed) - fresh - replaced)


def _stage(cursor: Any, records: Sequence[Parsed]) -> None:
    """Put the records into the staging table; what does not fit is the server's kind of error."""
    try:
        with cursor.copy(_COPY) as copy:
            copy.set_types(list(TYPES.values()))
            for record in records:
                copy.write_row(record.row)
    except (OverflowError, ValueError, TypeError) as error:
        # In binary form a value is refused on this side, before the server could do so.
        raise DataError(str(error)) from error


def _are_all_new(cursor: Any, zone: dict[str, str]) -> bool:
    """Write the staged rows and their hours; False: one of them is there, and nothing is done."""
    try:
        with transaction.atomic():
            cursor.execute(_ALL)
    except IntegrityError:
        return False
    cursor.execute(_ROLL_ALL, zone)
    return True


def touch_keys(*, used_at: dict[str, dt.datetime]) -> None:
    """Note when keys were last used, each at most once a minute; locked rows are left out."""
    if not used_at:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH used AS (
                SELECT k.id, u.at FROM unnest(%s::text[], %s::timestamptz[]) AS u(key_id, at)
                JOIN quotas_apikey k ON k.public_id = u.key_id
                WHERE k.last_used_at IS NULL OR k.last_used_at < u.at - interval '1 minute'
                FOR UPDATE OF k SKIP LOCKED
            )
            UPDATE quotas_apikey k SET last_used_at = used.at FROM used WHERE k.id = used.id
            """,
            [list(used_at), list(used_at.values())],
        )


def _move(before: Position, after: Position) -> None:
    """Lock the position's row and move it; whoever comes second is told so."""
    WriterPosition.objects.get_or_create(
        id=1, defaults={"epoch": "", "run_id": "", "stream_id": "0-0"}
    )
    row = WriterPosition.objects.select_for_update().get(id=1)
    if Position(row.epoch, row.run_id, row.stream_id) != before:
        raise Overtaken
    row.epoch, row.run_id, row.stream_id = after.epoch, after.run_id, after.stream_id
    row.save()


def _count(cursor: Any, sql: str, parameters: dict[str, str]) -> int:
    cursor.execute(sql, parameters)
    number: int = cursor.fetchone()[0]
    return number
