"""What was measured is kept, published and withdrawn by rules the database holds too."""

from __future__ import annotations

import datetime as dt
import io
import json
from typing import Any

import pytest
import redis
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError
from django.utils import timezone

from quotas.models import CapacityDecision, CapacityRun, PoolMinute, Replica, User
from quotas.services import announced, capacity, engines
from quotas.snapshots.measured import MEASURED, MINUTES, measured_from_json

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


def test_a_run_for_later_is_announced_with_its_length(replica: Replica) -> None:
    """
    A planned run stands on the page with its beginning, and its end where the same plan was
    measured before; a run that goes on with the end it expects; one that died not at all.
    """
    now = timezone.now()
    first = complete(replica)
    CapacityRun.objects.filter(pk=first.pk).update(
        started_at=now - dt.timedelta(hours=1), ended_at=now - dt.timedelta(minutes=20)
    )
    run = capacity.request(replica=replica, in_s=600)
    (seen,) = announced.runs(now=now)
    assert abs((seen.begins_at - now).total_seconds() - 600) < 5
    assert seen.ends_at is not None
    assert seen.ends_at - seen.begins_at == dt.timedelta(minutes=40)

    capacity.begin(run=run, plan={}, fingerprint={}, digest="d", steps_total=3, duration_s=90)
    (seen,) = announced.runs(now=now)
    assert seen.ends_at == run.expected_end_at
    assert announced.runs(now=now + dt.timedelta(minutes=2)) == []


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


def row(at: dt.datetime, **seen: Any) -> dict[str, Any]:
    """Return one minute as the gateway sums it up."""
    return {"pool": "tiny", "at": at.timestamp(), "looks": 12, "verdict": "ok", **seen}


def test_minutes_move_from_redis_into_the_books_once(replica: Replica, redis_url: str) -> None:
    """
    A minute is taken away after it is kept; kept twice it is one row, and unknown stays unknown.
    """
    store = redis.Redis.from_url(redis_url)
    minute = timezone.now().replace(second=0, microsecond=0)
    text = json.dumps(row(minute, held_interactive=3.5, preemptions_per_s=0.1))
    store.rpush(MINUTES, text, text)

    assert capacity.keep_minutes(store) == 2
    kept = PoolMinute.objects.get()
    assert (kept.minute, kept.held_interactive, kept.kv_usage) == (minute, 3.5, None)
    assert (kept.preemptions, kept.looks) == (6, 12)
    assert store.llen(MINUTES) == 0


def test_days_are_summed_from_minutes(replica: Replica) -> None:
    """
    A day says whether it was saturated, what was waited for, and how full its fullest hour was.
    """
    noon = timezone.localtime().replace(hour=0, minute=5, second=0, microsecond=0)
    for n, word in enumerate(["ok", "saturated", "busy"]):
        capacity.record_minute(
            row(
                noon + dt.timedelta(minutes=n),
                verdict=word, kv_usage=0.2 * n, waited_s={"slots": 30, "kv": 1},
                tokens_out_per_s=100, waiting_interactive=8, held_interactive=8,
                preemptions_per_s=n / 60,
            )
        )  # fmt: skip

    (day,) = capacity.days("tiny")
    assert (day["saturated"], day["overloaded"], day["preemptions"]) == (True, False, 3)
    assert day["waited_s"] == {"slots": 90.0, "kv": 3.0}
    assert day["kv_usage"] == pytest.approx(0.2)
    assert day["offered_tokens_per_s"] == pytest.approx(200)


def figure(value: float) -> dict[str, float]:
    """Return a figure as a report stores it."""
    return {"value": value, "low": value, "high": value}


def test_gateways_are_told_what_each_replica_was_measured_at(
    replica: Replica, redis_url: str
) -> None:
    """
    The newest complete run counts, in its shortest prompts' rates; a withdrawn one does not.
    """
    store = redis.Redis.from_url(redis_url)
    points = [
        {"planned_tokens": n, "concurrency": c, "decode_per_s": figure(c * 10.0),
         "prefill_per_s": figure(100.0 * c)}
        for n in (64, 512) for c in (1, 2)
    ]  # fmt: skip
    run = begun(replica)
    capacity.end(run=run, state=State.COMPLETE, report={"points": points})

    assert capacity.publish_measured(store) == 1
    told = measured_from_json(store.hget(MEASURED, replica.public_id))
    assert (told.prefill_per_s, told.decode_per_s) == (200.0, ((1, 10.0), (2, 20.0)))

    capacity.publish(run=run)
    capacity.withdraw(run=run, reason="wrong card")
    assert capacity.publish_measured(store) == 0
    assert store.hgetall(MEASURED) == {}


def test_a_saturated_week_becomes_a_dated_decision(replica: Replica) -> None:
    """
    Three saturated days give one record a day, with blocker, action and arithmetic; asking again
    changes nothing but that day's.
    """
    now = timezone.localtime().replace(hour=0, minute=5, second=0, microsecond=0)
    for day in range(3):
        capacity.record_minute(
            row(now - dt.timedelta(days=day), verdict="saturated", waited_s={"slots": 3600},
                kv_usage=0.3)
        )  # fmt: skip
    for _ in range(2):
        call_command("decidecapacity", stdout=io.StringIO())

    decision = CapacityDecision.objects.get()
    assert (decision.pool, decision.blocker, decision.date) == ("tiny", "slots", now.date())
    assert "Raise the slots" in decision.action
    assert "3.0 hours" in decision.arithmetic
