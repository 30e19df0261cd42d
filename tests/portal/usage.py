"""Rows of usage for tests of pages; the real ones are written by the usage writer alone."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils import timezone

from quotas.models import UsageEvent, UsageHour


def event(user_id: int, number: int, **changes: Any) -> UsageEvent:
    """Return a served request, `number` minutes old."""
    fields: dict[str, Any] = {
        "request_id": f"req_{number}",
        "arrived_at": timezone.now() - dt.timedelta(minutes=number),
        "key_id": "key_1",
        "user_id": user_id,
        "group_id": None,
        "service_class": "interactive",
        "route": "/v1/chat/completions",
        "model": "Qwen2.5-14B",
        "replica_id": "rep_atlas",
        "outcome": "served",
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 20,
        "reasoning_tokens": None,
        "estimated": False,
        "queue_wait_ms": 300,
        "ttft_ms": 800,
        "duration_ms": 2000,
        "finish_reason": "stop",
        "error_code": "",
        "stream": True,
        "end_user": "",
        "batch_id": "",
        "client_request_id": "",
    }
    return UsageEvent(**{**fields, **changes})


def hour(user_id: int, start: dt.datetime, **changes: Any) -> UsageHour:
    """Return the sums of one hour with ten requests of 1,200 tokens in all."""
    fields: dict[str, Any] = {
        "hour": start,
        "user_id": user_id,
        "group_id": None,
        "key_id": "key_1",
        "model": "Qwen2.5-14B",
        "service_class": "interactive",
        "batch_id": "",
        "end_user": "",
        "requests": 10,
        "served": 9,
        "failed": 1,
        "aborted": 0,
        "evicted": 0,
        "estimated": 0,
        "prompt_tokens": 1000,
        "cached_tokens": 400,
        "completion_tokens": 200,
        "reasoning_tokens": 0,
        "queue_wait_ms": 3000,
        "ttft_ms": 8000,
        "ttft_count": 10,
        "duration_ms": 20000,
    }
    return UsageHour(**{**fields, **changes})
