"""Writes the output and error file of a job once, and ends the job with them.

Everything here may run twice, at once, or half: one writer holds the job, its files have names
and bytes that depend on the job alone, and their rows come last, together with the end state.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from portal.batches.ending import UNSENT, end_unsent
from portal.batches.models import BatchJob, BatchResult
from portal.batches.moves import move
from portal.batches.runner.verdict import error_line
from portal.batches.states import WRITING, ItemState, JobState
from portal.failpoints import failpoint
from portal.files import config, shelf
from portal.files.models import StoredFile

WRITER_LEASE_S = 20.0
WRITER_RENEW_S = 5.0
END_OF = {
    JobState.FINALIZING: JobState.COMPLETED,
    JobState.CANCELLING: JobState.CANCELLED,
    JobState.EXPIRING: JobState.EXPIRED,
}
NOT_DONE = [ItemState.FAILED, ItemState.EXPIRED, ItemState.CANCELLED]
REASONS = {
    ItemState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this line ran."),
    ItemState.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
}


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
            end_unsent(job_pk, UNSENT[state])
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
