"""`manage.py simulate` on what really happened, as an admin would try it."""

from __future__ import annotations

import datetime as dt
import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from quotas.models import UsageEvent
from quotas.services import partitions

HOUR = dt.timedelta(hours=1)


def used(model: str, count: int) -> None:
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
            batch_id="", client_request_id="",
        )
        for n in range(count)
    )  # fmt: skip


def simulated(*arguments: str) -> list[dict[str, object]]:
    out = StringIO()
    call_command("simulate", "--days", "1", "--json", *arguments, stdout=out, stderr=StringIO())
    found: list[dict[str, object]] = json.loads(out.getvalue())
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
