"""What people do to batches: submit, cancel, run the failed lines again, move to another key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import partial
from pathlib import PurePath

from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from portal.batches import bell, enqueued, submission, webhooks
from portal.batches.models import BatchItem, BatchJob, Lane
from portal.batches.moves import move
from portal.batches.states import ItemState, JobState
from portal.batches.submission import Submission
from portal.failpoints import failpoint
from portal.files import shelf
from portal.files.models import StoredFile
from portal.files.services import Receipt, refusal_of
from portal.openai_api.authentication import why_not
from portal.openai_api.errors import BadRequest, Conflicting
from quotas.models import ApiKey

# One statement for all lines: those that begin alike get neighbouring places in the order.
COPY_LINES = """
INSERT INTO batch_item
  (job_id, line_no, run_order, custom_id, "offset", length, state, attempt, failures,
   lease_owner, problem)
SELECT %s, line_no, row_number() OVER (ORDER BY first_alike, line_no), custom_id, "offset",
       length, 'queued', 0, 0, '', ''
FROM (SELECT *, min(line_no) OVER (PARTITION BY prefix) AS first_alike
      FROM file_line WHERE file_id = %s) AS lines
"""


def submit(
    *, key: ApiKey, request: Submission, idempotency_key: str = "", retry_of: BatchJob | None = None
) -> BatchJob:
    """Store a job with all its lines and ring the bell; the same request twice is one job."""
    if idempotency_key:
        earlier = BatchJob.objects.filter(owner=key.owner, idempotency_key=idempotency_key).first()
        if earlier is not None:
            return _same(earlier, request)
    file = submission.find_input(key.owner_id, request.input_file_id)
    refusals = submission.check(file, request.endpoint, key)
    if refusals:
        raise refusal_of([refusal.as_detail() for refusal in refusals], len(refusals))
    try:
        with transaction.atomic():
            enqueued.check(key, file.prompt_tokens)
            job = _store(key, request, file, idempotency_key or None, retry_of)
    except IntegrityError:
        # The same key at the same instant: the other request won, its job is the answer.
        earlier = BatchJob.objects.filter(owner=key.owner, idempotency_key=idempotency_key).first()
        if earlier is None:
            raise
        return _same(earlier, request)
    failpoint("job_stored")
    return job


def _same(earlier: BatchJob, request: Submission) -> BatchJob:
    if earlier.request_digest != request.digest:
        raise Conflicting("This Idempotency-Key was used before with another body.")
    return earlier


def repeated(*, key: ApiKey, request: Submission, within_s: int = 900) -> BatchJob | None:
    """Return the job this request already made, for a client that says it tries again.

    The `openai` client sends no Idempotency-Key, but it counts its retries in a header: after a
    lost answer the second try must not make a second job.
    """
    since = timezone.now() - dt.timedelta(seconds=within_s)
    return BatchJob.objects.filter(
        key=key, request_digest=request.digest, created_at__gte=since
    ).first()


def _store(
    key: ApiKey,
    request: Submission,
    file: StoredFile,
    idempotency_key: str | None,
    retry_of: BatchJob | None,
) -> BatchJob:
    now = timezone.now()
    pool = submission.pool_of(file.model)
    job = BatchJob.objects.create(
        owner=key.owner,
        key=key,
        name=PurePath(file.filename).stem[:255] or file.filename,
        endpoint=request.endpoint,
        model=pool.name if pool else file.model,
        input_file=file,
        input_file_ref=file.public_id,
        completion_window=request.completion_window,
        output_expires_s=request.output_expires_s,
        webhook_url=request.webhook_url,
        metadata=request.metadata,
        created_at=now,
        expires_at=now + request.window,
        total=file.lines,
        prompt_tokens_estimated=file.prompt_tokens,
        request_digest=request.digest,
        idempotency_key=idempotency_key,
        retry_of=retry_of,
    )
    with connection.cursor() as cursor:
        cursor.execute(COPY_LINES, [job.pk, file.pk])
    Lane.objects.get_or_create(owner=key.owner)
    transaction.on_commit(bell.ring)
    return job


def cancel(*, job: BatchJob) -> BatchJob:
    """Cancel: lines not sent yet never run, those in flight may still end."""
    with transaction.atomic():
        moved = move(job.pk, JobState.CANCELLING)
        if moved:
            BatchItem.objects.filter(job=job, state=ItemState.QUEUED).update(
                state=ItemState.CANCELLED, finished_at=timezone.now()
            )
            transaction.on_commit(bell.ring)
    failpoint("job_cancelling")
    job.refresh_from_db()
    if not moved and job.state not in {JobState.CANCELLING, JobState.CANCELLED}:
        raise BadRequest(
            f"This batch is {job.get_state_display()} and cannot be cancelled any more.",
            code="batch_not_cancellable",
        )
    return job


def run_failed_again(*, job: BatchJob, key: ApiKey | None = None) -> BatchJob:
    """Submit the lines that did not end well as a new job of their own."""
    key = key or job.key
    if reason := why_not(key):
        raise BadRequest(f"The batch cannot run again: {reason}.", param="key")
    if job.state not in {JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLED}:
        raise BadRequest("Wait for the batch to end first.", code="batch_still_running")
    if job.input_file is None:
        raise BadRequest("Its input file was deleted.", code="file_not_found")
    items = job.items.exclude(state=ItemState.DONE).order_by("line_no")
    if not items.exists():
        raise BadRequest("Every line of this batch was done.", code="nothing_failed")
    source = shelf.LineSource(job.input_file.name)
    try:
        with Receipt() as receipt:
            for line in _lines(source, items.values_list("offset", "length")):
                receipt.feed(line)
            file = receipt.accept(owner=job.owner, key=key, filename=f"{job.name}-again.jsonl")
    finally:
        source.close()
    request = submission.read(
        {
            "input_file_id": file.public_id,
            "endpoint": job.endpoint,
            "completion_window": job.completion_window,
            "metadata": job.metadata,
            "webhook_url": job.webhook_url if webhooks.is_allowed(job.webhook_url) else None,
        }
    )
    return submit(key=key, request=request, retry_of=job)


def _lines(source: shelf.LineSource, places: object) -> Iterator[bytes]:
    for offset, length in places.iterator():  # type: ignore[attr-defined]
        yield source.read(offset, length) + b"\n"


def move_to_key(*, job: BatchJob, key: ApiKey) -> BatchJob:
    """Let a job go on under another key of its owner, such as after a revocation."""
    if key.owner_id != job.owner_id:
        raise BadRequest("The key belongs to somebody else.", param="key")
    if reason := why_not(key):
        raise BadRequest(f"The batch cannot use it: {reason}.", param="key")
    changed = BatchJob.objects.filter(
        pk=job.pk, state__in=[JobState.QUEUED, JobState.IN_PROGRESS]
    ).update(key=key, wait_code="", wait_message="", wait_until=None)
    if not changed:
        raise BadRequest("This batch sends no lines any more.", code="batch_ended")
    transaction.on_commit(partial(bell.ring))
    job.refresh_from_db()
    return job
