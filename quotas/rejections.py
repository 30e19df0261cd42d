"""Carries the counts of rejected requests from Redis into the books, a minute at a time.

A minute is taken once it has passed, as a whole and as an absolute number: doing it twice, or
dying between the two stores, changes nothing.
"""

from __future__ import annotations

import datetime as dt

import redis
from django.db import transaction

from quotas.models import RejectedMinute
from quotas.snapshots.usage import REJECTED, REJECTED_KEPT_S

SETTLED_S = 10  # a gateway may still be counting into a minute that has just passed


def collect(client: redis.Redis, *, now_s: float) -> int:
    """Write every minute that has passed and forget it in Redis; return how many rows."""
    last = int((now_s - SETTLED_S) // 60) - 1
    minutes = range(last - REJECTED_KEPT_S // 60, last + 1)
    with client.pipeline(transaction=False) as pipe:
        for minute in minutes:
            pipe.hgetall(f"{REJECTED}{minute}")
        counts = dict(zip(minutes, pipe.execute(), strict=True))
    rows = [row for minute, fields in counts.items() for row in _rows(minute, fields)]
    if not rows:
        return 0
    with transaction.atomic():
        RejectedMinute.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["key_id", "minute", "code"],
            update_fields=["count"],
        )
    client.delete(*(f"{REJECTED}{minute}" for minute, fields in counts.items() if fields))
    return len(rows)


def _rows(minute: int, fields: dict[bytes, bytes]) -> list[RejectedMinute]:
    at = dt.datetime.fromtimestamp(minute * 60, dt.UTC)
    rows = []
    for field, count in fields.items():
        key_id, _, code = field.decode("utf-8", "replace").partition("|")
        rows.append(RejectedMinute(minute=at, key_id=key_id[:24], code=code[:64], count=int(count)))
    return rows
