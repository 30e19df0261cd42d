"""What was measured is kept, published and withdrawn by rules the database holds too."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.utils import timezone

from quotas.models import CapacityRun, Replica, User
from quotas.services import capacity, engines

State = CapacityRun.State
pytestmark = pytest.mark.django_db


@pytest.fixture
def replica(db: None) -> Replica:
    """Return a registered replica."""
    return engines.register(url="http://127.0.0.1:9", pool="tiny", kind="llamacpp", slots=4)


def begun(replica: Replica) -> CapacityRun:
    """Return a run that has begun."""
    run = capacity.request(replica=replica)
    capacity.begin(
        run=run, plan={}, fingerprint={"a": "1"}, digest="d1", steps_total=3, duration_s=60
    )
    return run


def complete(replica: Replica) -> CapacityRun:
    """Return a run that is complete."""
    run = begun(replica)
    assert capacity.end(run=run, state=State.COMPLETE, sentence="Serves about 5.")
    return run


def test_one_replica_is_measured_once_at_a_time(replica: Replica) -> None:
    """
    A second run of the same replica is refused while one is planned or runs.
    """
    begun(replica)
    with pytest.raises(ValidationError, match="already"):
        capacity.request(replica=replica)


def test_a_run_whose_process_died_does_not_block_the_next(replica: Replica) -> None:
    """
    A run not heard of for a minute is ended as lost, and the replica is free again.
    """
    lost = begun(replica)
    CapacityRun.objects.update(heard_at=timezone.now() - dt.timedelta(minutes=2))

    capacity.request(replica=replica)
    lost.refresh_from_db()
    assert (lost.state, lost.reason) == (State.FAILED, "The measuring process was lost.")


@pytest.mark.parametrize("state", [State.PARTIAL, State.VOID, State.FAILED])
def test_only_complete_runs_are_published(replica: Replica, state: str) -> None:
    """
    Partial, void and failed runs are kept and never shown as the card's capacity.
    """
    run = begun(replica)
    capacity.end(run=run, state=state, reason="why")

    with pytest.raises(ValidationError):
        capacity.publish(run=run)
    with pytest.raises(IntegrityError):
        CapacityRun.objects.filter(pk=run.pk).update(published_at=timezone.now())


def test_an_ended_run_stays_ended(replica: Replica) -> None:
    """
    No state leads out of an end state: a late end changes nothing.
    """
    run = complete(replica)

    assert capacity.end(run=run, state=State.VOID, reason="late") is False
    assert (run.state, run.reason) == (State.COMPLETE, "")


def test_withdrawn_figures_stay_with_date_and_reason(replica: Replica, admin: User) -> None:
    """
    Withdrawing needs a reason, keeps the figures, and takes them out of what is current.
    """
    run = complete(replica)
    capacity.publish(run=run, by=admin)
    assert capacity.published("tiny") == run
    with pytest.raises(ValidationError):
        capacity.withdraw(run=run, reason="  ")

    capacity.withdraw(run=run, reason="A co-tenant was active.", by=admin)
    assert capacity.published("tiny") is None
    assert (run.sentence, run.withdrawn_reason) == ("Serves about 5.", "A co-tenant was active.")
    assert run.withdrawn_at is not None


def test_runs_with_other_fingerprints_are_not_comparable(replica: Replica) -> None:
    """
    Only runs of the same fingerprint may stand in one line.
    """
    first, second = complete(replica), complete(replica)
    other = capacity.request(replica=replica)
    capacity.begin(run=other, plan={}, fingerprint={}, digest="d2", steps_total=1, duration_s=1)
    capacity.end(run=other, state=State.COMPLETE)

    assert set(capacity.comparable(first)) == {first, second}


def test_a_stop_is_heard_by_the_run(replica: Replica) -> None:
    """
    A stop asked for on the page reaches the run with its next sign of life.
    """
    run = begun(replica)
    assert capacity.heard(run=run) is False
    capacity.stop(run=run)
    assert capacity.heard(run=run) is True


def look(**seen: Any) -> dict[str, Any]:
    """Return one look at a pool."""
    return {"verdict": "ok", **seen}


def test_a_minute_averages_what_was_known(replica: Replica) -> None:
    """
    A look that did not know a number does not count as 0; a minute of unknowns stays unknown.
    """
    minute = timezone.now().replace(second=0, microsecond=0)
    looks = [look(held_interactive=2), look(held_interactive=None), look(held_interactive=4)]
    capacity.record_minute(pool="tiny", minute=minute, looks=looks)

    from quotas.models import PoolMinute

    row = PoolMinute.objects.get()
    assert (row.held_interactive, row.kv_usage, row.looks) == (3, None, 3)


def test_days_are_summed_from_minutes(replica: Replica) -> None:
    """
    A day says whether it was saturated, what was waited for, and how full its fullest hour was.
    """
    noon = timezone.localtime().replace(hour=0, minute=5, second=0, microsecond=0)
    for n, word in enumerate(["ok", "saturated", "busy"]):
        capacity.record_minute(
            pool="tiny",
            minute=noon + dt.timedelta(minutes=n),
            looks=[
                look(
                    verdict=word, kv_usage=0.2 * n, waited_s={"slots": 30, "kv": 1},
                    tokens_out_per_s=100, waiting_interactive=8, held_interactive=8, preemptions=n,
                )
            ],
        )  # fmt: skip

    (day,) = capacity.days("tiny")
    assert (day["saturated"], day["overloaded"], day["preemptions"]) == (True, False, 3)
    assert day["waited_s"] == {"slots": 90.0, "kv": 3.0}
    assert day["kv_usage"] == pytest.approx(0.2)
    assert day["offered_tokens_per_s"] == pytest.approx(200)
