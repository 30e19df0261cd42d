"""What ends lines and jobs from outside: dead runners, closed windows, inputs that are gone.

Everything here may run twice or at once: each change is conditional on the state it ends.
"""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from portal.batches.models import BatchItem, BatchJob, BatchResult
from portal.batches.moves import move
from portal.batches.runner.verdict import MOST_FAILURES, error_line
from portal.batches.states import SENDING, ItemState, JobState

GRACE_S = 10.0  # lines in flight may still end this long after a cancel or the window's end
UNSENT = {JobState.CANCELLING: ItemState.CANCELLED, JobState.EXPIRING: ItemState.EXPIRED}
BEHIND = 10_000_000  # added to the order of a line that broke: it comes after all others
# A line whose runner died is charged with it; the third time it ends, with that reason.
RECLAIM = """
UPDATE batch_item SET state = 'queued', lease_owner = '', lease_end = NULL, failures = failures + 1,
       run_order = run_order + %s
WHERE id IN (SELECT id FROM batch_item WHERE state = 'running' AND lease_end < now()
             AND failures + 1 < %s LIMIT 1000 FOR UPDATE SKIP LOCKED)
"""
LOST_FOR_GOOD = """
SELECT id, job_id, custom_id FROM batch_item
WHERE state = 'running' AND lease_end < now() AND failures + 1 >= %s
LIMIT 1000 FOR UPDATE SKIP LOCKED
"""


def reclaim() -> int:
    """Take lines from runners that are not heard of any more; return how many."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(RECLAIM, [BEHIND, MOST_FAILURES])
        taken: int = cursor.rowcount
        cursor.execute(LOST_FOR_GOOD, [MOST_FAILURES])
        lost = cursor.fetchall()
        for item_pk, job_pk, custom_id in lost:
            _end_as_poison(item_pk, job_pk, custom_id)
    return taken + len(lost)


def _end_as_poison(item_pk: int, job_pk: int, custom_id: str) -> None:
    message = f"The process that ran this line died {MOST_FAILURES} times; it is not tried again."
    BatchItem.objects.filter(pk=item_pk).update(
        state=ItemState.FAILED,
        problem=message,
        finished_at=timezone.now(),
        lease_owner="",
        lease_end=None,
        failures=MOST_FAILURES,
    )
    BatchResult.objects.create(
        item_id=item_pk, line=error_line(custom_id, "attempts_exhausted", message)
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE batch_job SET failed = failed + 1, last_line_at = now() "
            "WHERE id = %s RETURNING completed + failed = total",
            [job_pk],
        )
        if cursor.fetchone() == (True,):
            move(job_pk, JobState.FINALIZING)


def close_windows() -> int:
    """End what has not finished inside its completion window; return how many jobs."""
    over = BatchJob.objects.filter(state__in=SENDING, expires_at__lte=timezone.now())
    closed = 0
    for job_pk in over.values_list("pk", flat=True)[:100]:
        with transaction.atomic():
            if move(job_pk, JobState.EXPIRING):
                end_unsent(job_pk, ItemState.EXPIRED)
                closed += 1
    return closed


def end_unsent(job_pk: int, state: ItemState) -> None:
    """End the lines that were never sent."""
    BatchItem.objects.filter(job=job_pk, state=ItemState.QUEUED).update(
        state=state, finished_at=timezone.now()
    )


def fail(job_pk: int, code: str, message: str) -> bool:
    """End a job whose input is gone; nothing of it can run."""
    errors = [{"code": code, "line": None, "message": message, "param": "input_file_id"}]
    with transaction.atomic():
        moved = move(job_pk, JobState.FAILED, errors=errors)
        if moved:
            BatchItem.objects.filter(
                job=job_pk, state__in=[ItemState.QUEUED, ItemState.RUNNING]
            ).update(
                state=ItemState.CANCELLED,
                finished_at=timezone.now(),
                lease_owner="",
                lease_end=None,
            )
    return moved


def overdue(job: BatchJob, now: dt.datetime) -> bool:
    """Tell whether lines still in flight are to be broken off: the grace has passed."""
    begun = job.cancelling_at if job.state == JobState.CANCELLING else job.finalizing_at
    return job.state in UNSENT and begun is not None and (now - begun).total_seconds() > GRACE_S


def silent_since(job: BatchJob) -> dt.datetime | None:
    """Return since when no line of a sending job has ended, once that is too long."""
    if job.state not in SENDING:
        return None
    since = job.last_line_at or job.created_at
    silence = dt.timedelta(seconds=settings.BATCH_STALLED_AFTER_S)
    return since if timezone.now() - since > silence else None
