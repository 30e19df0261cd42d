"""The runner's only way to the rows: lanes, leases, claims, answers. Synchronous.

Every statement is conditional: on the lease for lanes, on state and attempt for items. An old
runner that wakes after its leases ran out changes nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from portal.batches import ending
from portal.batches.models import BatchJob, Lane
from portal.batches.moves import move
from portal.batches.runner.verdict import Kind, Verdict, output_line
from portal.batches.states import SENDING, ItemState, JobState
from portal.failpoints import failpoint
from portal.openai_api.authentication import why_not

JOBS_MOST = 64  # of one person, looked at at once
PAUSED_S = 15.0  # a job whose key opens nothing looks again this often
# A line with so many broken attempts may be what breaks them: it runs while nothing else is out,
# so that its next break is charged to it alone.
SUSPECT_FROM = 2
PAUSED = "It is paused until you move it to another key"

CLAIM_LANES = """
UPDATE batch_lane SET lease_owner = %s, lease_end = now() + make_interval(secs => %s)
WHERE owner_id IN (
  SELECT owner_id FROM batch_lane AS lane
  WHERE (lease_end IS NULL OR lease_end <= now())
    AND EXISTS (SELECT 1 FROM batch_job AS job WHERE job.owner_id = lane.owner_id
                AND job.state IN ('queued', 'in_progress')
                AND (job.wait_until IS NULL OR job.wait_until <= now()))
  ORDER BY lease_end NULLS FIRST LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING owner_id
"""
RENEW_LANES = """
UPDATE batch_lane SET lease_end = now() + make_interval(secs => %s)
WHERE lease_owner = %s RETURNING owner_id
"""
RENEW_ITEMS = """
UPDATE batch_item SET lease_end = now() + make_interval(secs => %s)
WHERE lease_owner = %s AND state = 'running'
"""
# Many jobs in one statement, each in the order of its index; `item_queued` has the lines left.
CLAIM = """
UPDATE batch_item AS item SET state = 'running', attempt = attempt + 1, lease_owner = %s,
       lease_end = now() + make_interval(secs => %s)
FROM unnest(%s::bigint[], %s::int[]) AS wish(job, most)
CROSS JOIN LATERAL (
  SELECT id FROM batch_item
  WHERE job_id = wish.job AND state = 'queued' AND failures < %s
    AND (not_before IS NULL OR not_before <= now())
  ORDER BY run_order LIMIT wish.most FOR UPDATE SKIP LOCKED) AS picked
WHERE item.id = picked.id
RETURNING item.job_id, item.run_order, item.id, attempt, failures, custom_id, "offset", length,
          line_no
"""
CLAIM_SUSPECT = """
UPDATE batch_item SET state = 'running', attempt = attempt + 1, lease_owner = %s,
       lease_end = now() + make_interval(secs => %s)
WHERE id IN (SELECT id FROM batch_item WHERE job_id = ANY(%s) AND state = 'queued'
             AND failures >= %s AND (not_before IS NULL OR not_before <= now())
             ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING job_id, id, attempt, failures, custom_id, "offset", length, line_no
"""
FINISH = """
WITH answers AS (
  SELECT * FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::int[], %s::text[], %s::bytea[],
                       %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
  AS a(id, attempt, state, status, problem, line, prompt, cached, completion, reasoning)),
ended AS (
  UPDATE batch_item AS item SET state = a.state, status_code = NULLIF(a.status, 0),
         problem = a.problem, finished_at = now(), lease_owner = '', lease_end = NULL
  FROM answers AS a
  WHERE item.id = a.id AND item.attempt = a.attempt AND item.state = 'running'
  RETURNING item.id, item.job_id, a.state, a.line, a.prompt, a.cached, a.completion, a.reasoning),
kept AS (INSERT INTO batch_result (item_id, line) SELECT id, line FROM ended)
UPDATE batch_job AS job SET completed = job.completed + s.done, failed = job.failed + s.failed,
       input_tokens = input_tokens + s.prompt, cached_tokens = cached_tokens + s.cached,
       output_tokens = output_tokens + s.completion,
       reasoning_tokens = reasoning_tokens + s.reasoning, last_line_at = now(),
       wait_code = '', wait_message = '', wait_until = NULL
FROM (SELECT job_id, count(*) FILTER (WHERE state = 'done') AS done,
             count(*) FILTER (WHERE state = 'failed') AS failed,
             sum(prompt) AS prompt, sum(cached) AS cached, sum(completion) AS completion,
             sum(reasoning) AS reasoning
      FROM ended GROUP BY job_id) AS s
WHERE job.id = s.job_id
RETURNING job.id, job.completed + job.failed = job.total
"""
# A line that broke goes behind all others: what it may break then is little.
GIVE_BACK = """
UPDATE batch_item AS item SET state = 'queued', lease_owner = '', lease_end = NULL,
       failures = failures + %s, not_before = now() + make_interval(secs => %s),
       run_order = run_order + %s
FROM unnest(%s::bigint[], %s::int[]) AS given(id, attempt)
WHERE item.id = given.id AND item.attempt = given.attempt AND state = 'running'
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A job that has lines to send, as the runner needs to know it."""

    job_pk: int
    public_id: str
    owner_id: int
    endpoint: str
    key_digest: str
    input_name: str
    is_new: bool  # nothing of it was sent, at the time of reading


@dataclass(frozen=True, slots=True)
class Claimed:
    """One line this runner holds; `attempt` proves it."""

    item_pk: int
    attempt: int
    failures: int
    custom_id: str
    offset: int
    length: int
    line_no: int
    work: Work


@dataclass(frozen=True, slots=True)
class Ended:
    """One line with its verdict."""

    claimed: Claimed
    verdict: Verdict


def claim_lanes(runner: str, most: int) -> list[int]:
    """Take lanes nobody holds and that have lines to send."""
    with connection.cursor() as cursor:
        cursor.execute(CLAIM_LANES, [runner, settings.BATCH_LEASE_S, most])
        return [row[0] for row in cursor.fetchall()]


def release_lanes(runner: str, owners: Iterable[int]) -> None:
    """Give lanes back, so that another runner need not wait for the lease to end."""
    Lane.objects.filter(lease_owner=runner, owner__in=list(owners)).update(
        lease_owner="", lease_end=None
    )


def renew(runner: str) -> set[int]:
    """Prove that this runner lives; return the lanes it still holds."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(RENEW_LANES, [settings.BATCH_LEASE_S, runner])
        held = {row[0] for row in cursor.fetchall()}
        cursor.execute(RENEW_ITEMS, [settings.BATCH_LEASE_S, runner])
    return held


def jobs_to_send(owners: Iterable[int]) -> dict[int, list[Work]]:
    """Return the jobs of these people that may send lines now, oldest first."""
    found: dict[int, list[Work]] = {owner: [] for owner in owners}
    now = timezone.now()
    jobs = (
        BatchJob.objects.filter(
            Q(wait_until__isnull=True) | Q(wait_until__lte=now),
            owner__in=list(found),
            state__in=SENDING,
            expires_at__gt=now,
        )
        .select_related("key__owner__group", "input_file")
        .order_by("pk")
    )
    for job in jobs:
        if len(found[job.owner_id]) < JOBS_MOST and (work := _work(job)):
            found[job.owner_id].append(work)
    return found


def _work(job: BatchJob) -> Work | None:
    """Return what the runner needs of a job, or let it wait, or end it, where it cannot send."""
    if job.input_file is None:
        ending.fail(job.pk, "file_not_found", "its input file was deleted before it began")
        return None
    if reason := why_not(job.key):
        hold(job.pk, code="key_unusable", message=f"{PAUSED}: {reason}.", wait_s=PAUSED_S)
        return None
    return Work(
        job_pk=job.pk,
        public_id=job.public_id,
        owner_id=job.owner_id,
        endpoint=job.endpoint,
        key_digest=job.key.digest,
        input_name=job.input_file.name,
        is_new=job.state == JobState.QUEUED,
    )


def turn(
    runner: str, ended: Sequence[Ended], wishes: Sequence[tuple[Work, int]]
) -> tuple[list[int], list[Claimed]]:
    """Store what has ended and take what is wanted, in one transaction.

    Returns the jobs of which every line has now ended, and the lines taken.
    """
    if ended:
        failpoint("line_answered")
    with transaction.atomic():
        complete = _finish(ended) if ended else []
        claimed = _claim(runner, wishes) if wishes else []
    if ended:
        failpoint("line_committed")
    if claimed:
        failpoint("line_claimed")
    return complete, claimed


def claim(runner: str, work: Work, most: int) -> list[Claimed]:
    """Take up to `most` lines of one job."""
    return turn(runner, (), [(work, most)])[1]


def finish(ended: Sequence[Ended]) -> list[int]:
    """Store answers and states; return the jobs of which every line has now ended."""
    return turn("", ended, ())[0]


def _claim(runner: str, wishes: Sequence[tuple[Work, int]]) -> list[Claimed]:
    works = {work.job_pk: work for work, _ in wishes}
    counts = [most for _, most in wishes]
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, [runner, settings.BATCH_LEASE_S, list(works), counts, SUSPECT_FROM])
        rows = sorted(cursor.fetchall())
    for job_pk in {row[0] for row in rows}:
        if works[job_pk].is_new:
            move(job_pk, JobState.IN_PROGRESS)
    return [
        Claimed(pk, attempt, failures, custom_id, offset, length, line_no, works[job_pk])
        for job_pk, _, pk, attempt, failures, custom_id, offset, length, line_no in rows
    ]


def claim_suspect(runner: str, jobs: Mapping[int, Work]) -> Claimed | None:
    """Take one line that may be what breaks its attempts, of any of the jobs."""
    with connection.cursor() as cursor:
        cursor.execute(CLAIM_SUSPECT, [runner, settings.BATCH_LEASE_S, list(jobs), SUSPECT_FROM])
        row = cursor.fetchone()
    if row is None:
        return None
    job_pk, pk, attempt, failures, custom_id, offset, length, line_no = row
    return Claimed(pk, attempt, failures, custom_id, offset, length, line_no, jobs[job_pk])


def _finish(ended: Sequence[Ended]) -> list[int]:
    rows = [
        (
            e.claimed.item_pk,
            e.claimed.attempt,
            (ItemState.DONE if e.verdict.kind is Kind.DONE else ItemState.FAILED).value,
            e.verdict.status,
            _problem(e.verdict),
            output_line(e.claimed.custom_id, e.verdict),
            e.verdict.tokens.prompt,
            e.verdict.tokens.cached,
            e.verdict.tokens.completion,
            e.verdict.tokens.reasoning,
        )
        for e in ended
    ]
    with connection.cursor() as cursor:
        cursor.execute(FINISH, [list(column) for column in zip(*rows, strict=True)])
        complete = [pk for pk, is_complete in cursor.fetchall() if is_complete]
    return [pk for pk in complete if move(pk, JobState.FINALIZING)]


def _problem(verdict: Verdict) -> str:
    """Return in a few words why a line failed."""
    if verdict.kind is Kind.DONE:
        return ""
    text = verdict.message or verdict.code or f"answered with status {verdict.status}"
    return text[:300]


def give_back(lines: Sequence[Claimed], *, charge: int = 0, after_s: float = 0.0) -> None:
    """Put lines back into the queue; the runner could not bring them to an end."""
    behind = ending.BEHIND if charge else 0
    with connection.cursor() as cursor:
        cursor.execute(
            GIVE_BACK,
            [charge, after_s, behind, [c.item_pk for c in lines], [c.attempt for c in lines]],
        )


def hold(job_pk: int, *, code: str, message: str, wait_s: float) -> None:
    """Let a job wait, with the reason its owner is shown."""
    BatchJob.objects.filter(pk=job_pk, state__in=SENDING).update(
        wait_code=code[:64],
        wait_message=message[:500],
        wait_until=timezone.now() + dt.timedelta(seconds=wait_s),
    )


def jobs_overdue(job_pks: set[int]) -> set[int]:
    """Return those of the jobs whose lines in flight are to be broken off."""
    if not job_pks:
        return set()
    now = timezone.now()
    rows = BatchJob.objects.filter(pk__in=job_pks).exclude(state__in=SENDING)
    return {job.pk for job in rows if ending.overdue(job, now)}
