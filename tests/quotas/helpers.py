"""Helpers of the tests of the books: usage records, and what the gateways would read."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import redis

from quotas.snapshots.directory import KEYS, KeySnapshot, key_from_json
from quotas.snapshots.usage import FIELD, STREAM, UsageRecord

ARRIVED = dt.datetime(2026, 11, 20, 10, 30, tzinfo=dt.UTC)


def published(valkey: redis.Redis, digest: str) -> KeySnapshot | None:
    """Return what the gateways read of a key."""
    raw = valkey.hget(KEYS, digest)
    return None if raw is None else key_from_json(raw)


def record(number: int = 1, **changes: Any) -> UsageRecord:
    """Return a served request of 100 + 20 tokens; `changes` replace its fields."""
    usual = UsageRecord(
        request_id=f"req_{number:06}",
        arrived_at=(ARRIVED + dt.timedelta(seconds=number)).isoformat(),
        key_id="key_alice",
        user_id="1",
        group_id="",
        service_class="interactive",
        route="/v1/chat/completions",
        model="tiny",
        replica_id="rep_1",
        outcome="served",
        status=200,
        prompt_tokens=100,
        completion_tokens=20,
        queue_wait_ms=3,
        ttft_ms=40,
        duration_ms=500,
        finish_reason="stop",
    )
    return dataclasses.replace(usual, **changes)


def append(valkey: redis.Redis, *records: UsageRecord) -> None:
    """Append records as a gateway does."""
    with valkey.pipeline(transaction=False) as pipe:
        for item in records:
            pipe.xadd(STREAM, {FIELD: item.to_json()})
        pipe.execute()
