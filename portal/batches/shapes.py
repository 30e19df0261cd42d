"""Batches as OpenAI shows them, with our extra fields beside."""

from __future__ import annotations

import datetime as dt
from typing import Any

from portal.batches import insight, webhooks
from portal.batches.estimate import Estimate
from portal.batches.models import BatchJob
from portal.batches.states import PUBLIC, JobState
from portal.batches.submission import Refusal

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
    always = {
        "name": job.name,
        "retry_of": job.retry_of.public_id if job.retry_of else None,
        "webhook": _webhook(job),
    }
    now = insight.of(job)
    if now is None:
        return always
    plan = now.estimate
    return {
        **always,
        "lines_waiting": now.lines_waiting,
        "lines_running": now.lines_running,
        "queue_position": now.position,
        "why_it_waits": {"code": now.why_code, "message": now.why} if now.why else None,
        "estimated_start_at": _seconds(plan.start_at) if plan else None,
        "estimated_completion_at": _seconds(plan.end_at) if plan else None,
    }


def _webhook(job: BatchJob) -> dict[str, Any] | None:
    if not job.webhook_url:
        return None
    return {
        "url": job.webhook_url,
        "state": webhooks.state_of(job),
        "tries": job.webhook_tries,
        "problem": job.webhook_problem or None,
    }


def estimate_object(plan: Estimate, refusals: list[Refusal]) -> dict[str, Any]:
    """Return what a batch would be, if it were created now."""
    known = plan.end_at is not None
    return {
        "object": "batch.estimate",
        "known": known,
        "lines": plan.lines,
        "estimated_start_at": _seconds(plan.start_at),
        "estimated_completion_at": _seconds(plan.end_at),
        "soonest_completion_at": _seconds(plan.soonest_at),
        "latest_completion_at": _seconds(plan.latest_at),
        "fits_completion_window": plan.fits_window,
        "estimated_tokens": {
            "input": plan.prompt_tokens,
            "output": plan.output_tokens,
            "total": plan.prompt_tokens + (plan.output_tokens or 0) if known else None,
        },
        "would_be_refused": {
            "object": "list",
            "data": [refusal.as_detail() for refusal in refusals],
        },
    }
