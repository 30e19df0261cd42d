"""`manage.py simulate` on what really happened, as an admin would try it."""

from __future__ import annotations

import datetime as dt
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from gateway.ledger.simulation import Policy
from gateway.management import replay
from quotas.models import Pool, Replica, UsageEvent
from quotas.services import partitions

HOUR = dt.timedelta(hours=1)


def used(model: str, count: int, batch_id: str = "") -> None:
    """Put so many requests of one minute an hour ago into the books, half of them batch."""
    partitions.ensure(now=timezone.now() - 24 * HOUR)
    UsageEvent.objects.bulk_create(
        UsageEvent(
            request_id=f"{model}{n}",
            arrived_at=timezone.now() - HOUR + n * dt.timedelta(seconds=2),
            key_id=f"k{n % 3}", user_id=n % 3, service_class=("interactive", "batch")[n % 2],
            route="/v1/chat/completions", model=model, replica_id="1", outcome="served", status=200,
            prompt_tokens=10, completion_tokens=10, estimated=False, queue_wait_ms=0,
            duration_ms=20_000, finish_reason="stop", error_code="", stream=True, end_user="",
            batch_id=batch_id if n % 2 else "", client_request_id="",
        )
        for n in range(count)
    )  # fmt: skip


def simulated(*arguments: str) -> list[dict[str, Any]]:
    out = StringIO()
    call_command("simulate", "--days", "1", "--json", *arguments, stdout=out, stderr=StringIO())
    found: list[dict[str, Any]] = json.loads(out.getvalue())
    return found


def test_a_policy_is_tried_on_what_really_came(db: None, tmp_path: Path) -> None:
    """The same arrivals are played under both policies, side by side, and drawn."""
    used("tiny", 30)

    as_it_is, as_tried = simulated(
        "--try", "batch_slots=3", "--slots", "4", "--plot", str(tmp_path / "waits.png")
    )

    assert (as_it_is["name"], as_tried["name"]) == ("as it is", "as tried")
    assert as_it_is["interactive_done"] == as_tried["interactive_done"] == 15
    assert as_it_is["batch_wait_s"] != as_tried["batch_wait_s"]
    assert (tmp_path / "waits.png").stat().st_size > 1_000


def test_a_job_is_fed_anew_by_the_runners_rule(db: None) -> None:
    """
    How fast the lines of a batch came follows from the policy: with more slots the job ends
    sooner, and no line of it is taken for a request that came at its own time.
    """
    used("tiny", 120, batch_id="batch_1")

    as_it_is, as_tried = simulated("--try", "batch_slots=6", "--try", "batch_cap=6")

    assert as_it_is["jobs_done"] == as_tried["jobs_done"] == 3  # one job of each of three people
    assert as_it_is["batch_done"] == as_tried["batch_done"] == 60
    assert as_tried["jobs_s"]["max"] < as_it_is["jobs_s"]["max"]


def test_the_policy_that_is_comes_from_the_books(db: None) -> None:
    """What an administrator has set for the model is what "as it is" plays."""
    used("tiny", 30)
    pool = Pool.objects.create(name="tiny", batch_slots=3, batch_idle_after_s=7)
    Replica.objects.create(
        name="r", pool=pool, url="http://r", kind="vllm", slots=5, prefill_budget=4096
    )

    policy = replay.policy_of("tiny")

    assert policy == Policy(slots=5, prefill_budget=4096, batch_slots=3, batch_idle_after_s=7)
    with pytest.raises(CommandError, match="not one of"):
        simulated("--try", "slots=no")


def test_what_cannot_be_played_says_what_to_do(db: None) -> None:
    """Without requests, with several models, or without days, the message names the next step."""
    with pytest.raises(CommandError, match="more --days"):
        simulated()
    used("tiny", 2)
    used("large", 2)
    with pytest.raises(CommandError, match="--model"):
        simulated()
    with pytest.raises(CommandError, match="asked for: "):
        simulated("--model", "other")
    with pytest.raises(CommandError, match="--days"):
        call_command("simulate", "--try", "batch_slots=3")
