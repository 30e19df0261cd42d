"""Batches as OpenAI shows them, with our extra fields beside."""

from __future__ import annotations

import datetime as dt
from typing import Any

from portal.batches.models import BatchJob
from portal.batches.states import PUBLIC, ItemState, JobState

TIMES = (
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def _seconds(at: dt.datetime | None) -> int | None:
    return int(at.timestamp()) if at else None


def batch_object(job: BatchJob) -> dict[str, Any]:
    """Return the Batch object of one job."""
    return {
        "id": job.public_id,
        "object": "batch",
        "endpoint": job.endpoint,
        "model": job.model,
        "errors": {"object": "list", "data": job.errors} if job.errors else None,
        "input_file_id": job.input_file_ref,
        "completion_window": job.completion_window,
        "status": PUBLIC[JobState(job.state)],
        "output_file_id": job.output_file_ref or None,
        "error_file_id": job.error_file_ref or None,
        "created_at": _seconds(job.created_at),
        **{name: _seconds(getattr(job, name)) for name in TIMES},
        "request_counts": {
            "total": job.total,
            "completed": job.completed,
            "failed": job.failed,
        },
        "usage": {
            "input_tokens": job.input_tokens,
            "input_tokens_details": {"cached_tokens": job.cached_tokens},
            "output_tokens": job.output_tokens,
            "output_tokens_details": {"reasoning_tokens": job.reasoning_tokens},
            "total_tokens": job.input_tokens + job.output_tokens,
        },
        "metadata": job.metadata,
        **extras(job),
    }


def extras(job: BatchJob) -> dict[str, Any]:
    """Return what only this server tells; the official client keeps unknown fields."""
    live = job.state in BatchJob.LIVE
    return {
        "name": job.name,
        "why_it_waits": {"code": job.wait_code, "message": job.wait_message}
        if live and job.wait_code
        else None,
        "lines_running": job.items.filter(state=ItemState.RUNNING).count() if live else 0,
        "lines_waiting": job.items.filter(state=ItemState.QUEUED).count() if live else 0,
        "retry_of": job.retry_of.public_id if job.retry_of else None,
    }
