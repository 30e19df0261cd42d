"""Rules of states: a table of moves, one winner, ends that are never left."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from portal.batches import ending, results, services
from portal.batches.models import BatchItem, BatchJob, BatchResult
from portal.batches.moves import move
from portal.batches.runner import store
from portal.batches.runner.verdict import Answer, judge
from portal.batches.states import (
    ITEM_ENDS,
    JOB_ENDS,
    NEXT_ITEM,
    NEXT_JOB,
    PUBLIC,
    ItemState,
    JobState,
    came_from,
)
from tests.batches.helpers import ApiClient, lines

ANSWER = Answer(200, b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}')


@pytest.fixture
def job(api: ApiClient) -> BatchJob:
    """Return a stored job of four lines."""
    return BatchJob.objects.get(public_id=api.submit(lines(4)))


def together(*acts: Any) -> list[Any]:
    """Run the acts at the same time, each with a connection of its own."""
    gate, results = threading.Barrier(len(acts)), [None] * len(acts)

    def run(number: int, act: Any) -> None:
        try:
            gate.wait()
            results[number] = act()
        except Exception as error:
            results[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def claim(job: BatchJob, runner: str, most: int) -> list[store.Claimed]:
    """Claim as a room does."""
    (work,) = store.jobs_to_send([job.owner_id])[job.owner_id]
    return store.claim(runner, work, most)


def end(*claimed: store.Claimed) -> list[int]:
    """Finish lines well."""
    return store.finish([store.Ended(one, judge(ANSWER)) for one in claimed])


def test_every_state_is_reached_and_only_ends_have_no_way_out() -> None:
    """The tables name each state, and each has a public word."""
    assert set(NEXT_JOB) == set(PUBLIC) == set(JobState)
    assert set(NEXT_ITEM) == set(ItemState)
    for state in JobState:
        assert state == JobState.QUEUED or came_from(state)
    assert {
        JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLED, JobState.FAILED,
    } == JOB_ENDS  # fmt: skip
    assert {ItemState.DONE, ItemState.FAILED, ItemState.EXPIRED, ItemState.CANCELLED} == ITEM_ENDS


@pytest.mark.django_db
def test_only_moves_of_the_table_happen(job: BatchJob) -> None:
    """Any other move changes nothing and says so."""
    now = timezone.now()
    ends = dict.fromkeys(("completed_at", "failed_at", "expired_at", "cancelled_at"), now)
    for source, target in itertools.product(JobState, JobState):
        BatchJob.objects.filter(pk=job.pk).update(state=source, completed=4, **ends)

        moved = move(job.pk, target)

        assert moved is (target in NEXT_JOB[source]), (source, target)
        job.refresh_from_db()
        assert job.state == (target if moved else source)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "unheard"},
        {"completed": 3, "failed": 2},
        {"state": "completed", "completed_at": "2026-01-01T00:00Z", "completed": 3},
        {"state": "cancelled"},
    ],
)
def test_the_database_refuses_what_must_not_be(job: BatchJob, wrong: dict[str, Any]) -> None:
    """Invariants of a job are constraints, not only code."""
    with pytest.raises(IntegrityError), transaction.atomic():
        BatchJob.objects.filter(pk=job.pk).update(**wrong)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong", [{"state": "running"}, {"lease_end": "2026-01-01T00:00Z"}, {"state": "done"}]
)
def test_a_line_holds_a_lease_exactly_while_it_runs(job: BatchJob, wrong: dict[str, Any]) -> None:
    """Running means leased, ended means dated; the database says so."""
    with pytest.raises(IntegrityError), transaction.atomic():
        job.items.update(**wrong)


@pytest.mark.django_db(transaction=True)
def test_two_runners_never_hold_one_line(job: BatchJob) -> None:
    """Claims at the same time share the lines; none is in both hands."""
    first, second = together(lambda: claim(job, "one", 3), lambda: claim(job, "two", 3))

    taken = [one.item_pk for one in first + second]
    assert len(taken) == len(set(taken)) == 4


@pytest.mark.django_db(transaction=True)
def test_an_old_runner_changes_nothing(job: BatchJob) -> None:
    """After its lease ran out and another took the line, the first answer no longer counts."""
    (old,) = claim(job, "old", 1)
    BatchItem.objects.filter(pk=old.item_pk).update(lease_end=timezone.now())
    ending.reclaim()
    new = next(one for one in claim(job, "new", 4) if one.item_pk == old.item_pk)

    end(old)
    job.refresh_from_db()
    assert (job.completed, BatchResult.objects.count()) == (0, 0)

    end(new)
    end(new)
    job.refresh_from_db()
    assert (job.completed, job.output_tokens, BatchResult.objects.count()) == (1, 2, 1)


@pytest.mark.django_db(transaction=True)
def test_cancel_and_the_last_answer_race_to_one_end(job: BatchJob) -> None:
    """Whoever is first, the job ends once, and every line with it."""
    claimed = claim(job, "one", 4)

    together(lambda: end(*claimed), lambda: services.cancel(job=job))
    results.write_results(job.pk)

    job.refresh_from_db()
    assert job.state in {"completed", "cancelled"}
    assert (job.completed, job.items.exclude(state="done").count()) == (4, 0)
    assert job.output_file is not None
    assert job.output_file.lines == 4


@pytest.mark.django_db(transaction=True)
def test_two_writers_make_one_file(job: BatchJob) -> None:
    """Result files are written by one, and the job ends once."""
    end(*claim(job, "one", 4))

    wrote = together(*[lambda: results.write_results(job.pk)] * 3)

    assert sorted(map(bool, wrote)) == [False, False, True]
    job.refresh_from_db()
    assert job.state == "completed"


@pytest.mark.django_db(transaction=True)
def test_the_same_idempotency_key_at_the_same_instant_is_one_job(api: ApiClient) -> None:
    """Two requests race; both get the one job."""
    file_id = api.upload(lines(2)).json()["id"]

    def create() -> str:
        return str(api.create(file_id, headers={"idempotency-key": "race"}).json()["id"])

    first, second = together(create, create)

    assert first == second
    assert BatchJob.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_line_that_kills_its_runners_runs_alone_and_then_fails(job: BatchJob) -> None:
    """Twice its neighbours are charged with it; the third time it is by itself, and it ends."""
    for _ in range(2):
        assert len(claim(job, "dying", 4)) == 4
        BatchItem.objects.filter(state="running").update(lease_end=timezone.now())
        ending.reclaim()
    assert claim(job, "next", 4) == []
    (work,) = store.jobs_to_send([job.owner_id])[job.owner_id]
    poison = store.claim_suspect("next", {job.pk: work})
    assert poison is not None
    assert BatchItem.objects.filter(state="running").count() == 1
    BatchItem.objects.filter(state="running").update(lease_end=timezone.now())
    ending.reclaim()

    for _ in range(3):
        innocent = store.claim_suspect("last", {job.pk: work})
        assert innocent is not None
        end(innocent)

    results.write_results(job.pk)
    job.refresh_from_db()
    assert (job.state, job.completed, job.failed) == ("completed", 3, 1)


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_input_is_gone_fails_with_the_reason(job: BatchJob) -> None:
    """Nothing can run without the file; the job says so and ends."""
    BatchJob.objects.filter(pk=job.pk).update(input_file=None)

    assert store.jobs_to_send([job.owner_id]) == {job.owner_id: []}

    job.refresh_from_db()
    assert (job.state, job.errors[0]["code"]) == ("failed", "file_not_found")
    assert not job.items.exclude(state="cancelled").exists()
