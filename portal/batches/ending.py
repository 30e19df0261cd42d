"""How jobs end: windows that close, runners that die, result files written once.

Everything here may run twice, at once, or half: moves are conditional, result files have names
and bytes that depend on the job alone, and their rows come last, together with the end state.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from portal.batches.models import BatchItem, BatchJob, BatchResult
from portal.batches.moves import move
from portal.batches.runner.verdict import MOST_FAILURES, error_line
from portal.batches.states import SENDING, WRITING, ItemState, JobState
from portal.failpoints import failpoint
from portal.files import config, shelf
from portal.files.models import StoredFile

WRITER_LEASE_S = 20.0
WRITER_RENEW_S = 5.0
GRACE_S = 10.0  # lines in flight may still end this long after a cancel or the window's end
END_OF = {
    JobState.FINALIZING: JobState.COMPLETED,
    JobState.CANCELLING: JobState.CANCELLED,
    JobState.EXPIRING: JobState.EXPIRED,
}
UNSENT = {JobState.CANCELLING: ItemState.CANCELLED, JobState.EXPIRING: ItemState.EXPIRED}
NOT_DONE = [ItemState.FAILED, ItemState.EXPIRED, ItemState.CANCELLED]
REASONS = {
    ItemState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this line ran."),
    ItemState.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
}
# A line whose runner died is charged with it; the third time it ends, with that reason.
RECLAIM = """
UPDATE batch_item SET state = 'queued', lease_owner = '', lease_end = NULL, failures = failures + 1
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
        cursor.execute(RECLAIM, [MOST_FAILURES])
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
                _end_unsent(job_pk, ItemState.EXPIRED)
                closed += 1
    return closed


def _end_unsent(job_pk: int, state: ItemState) -> None:
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


def jobs_to_write() -> list[int]:
    """Return the jobs whose result files may be due."""
    free = Q(writer_until__isnull=True) | Q(writer_until__lt=timezone.now())
    rows = BatchJob.objects.filter(free, state__in=WRITING).order_by("pk")
    return list(rows.values_list("pk", flat=True)[:100])


def write_results(job_pk: int) -> bool:
    """Write output and error file and end the job; False: not due, or another writes them."""
    me = uuid.uuid4().hex
    if not _take(job_pk, me):
        return False
    try:
        job = BatchJob.objects.get(pk=job_pk)
        state = JobState(job.state)
        if state in UNSENT:
            _end_unsent(job_pk, UNSENT[state])
        if job.items.filter(state__in=[ItemState.QUEUED, ItemState.RUNNING]).exists():
            return False
        output = _write(job, me, "output", [ItemState.DONE])
        errors = _write(job, me, "errors", NOT_DONE)
        failpoint("files_written")
        _end(job, state, output, errors)
    except TakenOver:
        return False
    finally:
        BatchJob.objects.filter(pk=job_pk, writer=me).update(writer="", writer_until=None)
    failpoint("job_ended")
    drop_results(job_pk)
    return True


def _take(job_pk: int, me: str) -> bool:
    now = timezone.now()
    free = Q(writer_until__isnull=True) | Q(writer_until__lt=now)
    taken = BatchJob.objects.filter(free, pk=job_pk, state__in=WRITING).update(
        writer=me, writer_until=now + dt.timedelta(seconds=WRITER_LEASE_S)
    )
    return taken == 1


@dataclass(frozen=True, slots=True)
class Written:
    """A result file that is in its place but has no row yet."""

    public_id: str
    name: str
    size: int
    sha256: str
    lines: int


def file_id(job: BatchJob, kind: str) -> str:
    """Return the id of a result file: it depends on the job alone, so a second try is the same."""
    return "file-" + hashlib.sha256(f"{job.public_id}:{kind}".encode()).hexdigest()[:24]


class TakenOver(Exception):
    """Another writer holds the job: this one was silent for too long."""


def _stay(job: BatchJob, me: str) -> None:
    """Prove that this writer lives, or stop it."""
    until = timezone.now() + dt.timedelta(seconds=WRITER_LEASE_S)
    if not BatchJob.objects.filter(pk=job.pk, writer=me).update(writer_until=until):
        raise TakenOver


def _write(job: BatchJob, me: str, kind: str, states: list[ItemState]) -> Written | None:
    public_id = file_id(job, kind)
    lines, stayed_s = 0, time.monotonic()
    with shelf.Draft() as draft:
        for line in result_lines(job, states):
            draft.write(line + b"\n")
            lines += 1
            if time.monotonic() - stayed_s > WRITER_RENEW_S:
                _stay(job, me)
                stayed_s = time.monotonic()
        if not lines:
            return None
        _stay(job, me)
        draft.keep(shelf.place(public_id))
        return Written(public_id, shelf.place(public_id), draft.size, draft.sha256, lines)


def result_lines(job: BatchJob, states: list[ItemState]) -> Iterator[bytes]:
    """Yield the lines of a result file in the order of the input, with flat memory."""
    rows = (
        job.items.filter(state__in=states)
        .order_by("line_no")
        .values_list("custom_id", "state", "result__line")
    )
    for custom_id, state, line in rows.iterator(chunk_size=200):
        yield bytes(line) if line else _unrun(job, custom_id, state)


def _unrun(job: BatchJob, custom_id: str, state: str) -> bytes:
    code, message = REASONS.get(ItemState(state), ("internal_error", "The result was lost."))
    seed = f"{job.public_id}:{custom_id}"
    return error_line(custom_id, code, message, seed=seed)


def _end(job: BatchJob, state: JobState, output: Written | None, errors: Written | None) -> None:
    with transaction.atomic():
        rows = {
            kind: _row(job, kind, written)
            for kind, written in (("output", output), ("errors", errors))
        }
        moved = move(
            job.pk,
            END_OF[state],
            output_file=rows["output"],
            error_file=rows["errors"],
            output_file_ref=output.public_id if output else "",
            error_file_ref=errors.public_id if errors else "",
            wait_code="",
            wait_message="",
            wait_until=None,
        )
        if not moved:
            raise TakenOver


def _row(job: BatchJob, kind: str, written: Written | None) -> StoredFile | None:
    if written is None:
        return None
    now = timezone.now()
    seconds = job.output_expires_s or config.retention_s()
    row, _ = StoredFile.objects.get_or_create(
        public_id=written.public_id,
        defaults={
            "owner": job.owner,
            "key": job.key,
            "filename": f"{job.name[:200]}-{kind}.jsonl",
            "purpose": StoredFile.Purpose.BATCH_OUTPUT,
            "size": written.size,
            "sha256": written.sha256,
            "name": written.name,
            "created_at": now,
            "expires_at": now + dt.timedelta(seconds=seconds),
            "lines": written.lines,
            "endpoint": job.endpoint,
            "model": job.model,
        },
    )
    return row


def drop_results(job_pk: int) -> None:
    """Free the rows whose contents are now in the files."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM batch_result AS r USING batch_item AS i WHERE r.item_id = i.id "
            "AND i.job_id = %s",
            [job_pk],
        )


def drop_forgotten_results() -> int:
    """Do what a writer that died after the end could not do; return how many jobs."""
    ended = BatchJob.objects.exclude(state__in=BatchJob.LIVE).filter(
        pk__in=BatchResult.objects.values("item__job")
    )
    forgotten = list(ended.values_list("pk", flat=True)[:50])
    for job_pk in forgotten:
        drop_results(job_pk)
    return len(forgotten)


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
