"""Published measurements: what changed, what was withdrawn, and the raw data behind them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from quotas.models import CapacityRun, CapacitySample, Replica
from quotas.services import capacity, engines

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_gateway", "redis_url")]


@pytest.fixture
def replica(db: None) -> Replica:
    """Return a registered engine."""
    return engines.register(url="http://127.0.0.1:9", pool="tiny", kind="llamacpp", slots=4)


def published(replica: Replica, **fingerprint: str) -> CapacityRun:
    """Return a published run with these settings."""
    run = capacity.request(replica=replica)
    capacity.begin(
        run=run, plan={}, fingerprint=fingerprint, digest="d", steps_total=1, duration_s=1
    )
    CapacitySample.objects.create(
        run=run, step=1, kind="cold", prompt_tokens=64, concurrency=1, repeat=0,
        answers=[{"first_s": 0.25}],
    )  # fmt: skip
    capacity.end(run=run, state="complete", sentence=f"Serves {run.public_id}.")
    capacity.publish(run=run)
    return run


def test_a_lost_setting_is_shown_between_two_measurements(replica: Replica) -> None:
    """
    Two fingerprints that differ are shown as what they are, by name, before and now.
    """
    published(replica, model="m", speculative="draft")
    published(replica, model="m")
    text = Client().get("/capacity/").content.decode()

    assert "speculative" in text
    assert "not there" in text
    assert "the two are not compared" in text


def test_withdrawn_figures_stay_with_their_reason(replica: Replica) -> None:
    """
    A withdrawn measurement is struck out, not gone, and says why and when.
    """
    run = published(replica, model="m")
    capacity.withdraw(run=run, reason="A neighbour was active.")
    text = Client().get("/capacity/").content.decode()

    assert "A neighbour was active." in text
    assert f"<s>Serves {run.public_id}.</s>" in text
    assert f"{timezone.localtime():%Y}" in text


def test_raw_data_is_there_for_published_runs_only(
    replica: Replica, admin: Any, as_user: Any
) -> None:
    """
    Anybody may check a published figure; a void run is for administrators.
    """
    run = published(replica, model="m")
    void = capacity.request(replica=replica)
    capacity.end(run=void, state="void", reason="Foreign load.")

    told = Client().get(f"/capacity/{run.public_id}.json").json()
    assert told["samples"][0]["answers"] == [{"first_s": 0.25}]
    assert told["fingerprint"] == {"model": "m"}
    assert Client().get(f"/capacity/{void.public_id}.json").status_code == 404
    assert as_user(admin).get(f"/capacity/{void.public_id}.json").json()["state"] == "void"


def test_what_is_measured_and_withdrawn_stands_on_the_status_page(replica: Replica) -> None:
    """
    A coming measurement is announced, a withdrawn one keeps its sentence struck out with the
    reason, and programs read what is published.
    """
    kept = published(replica, model="m")
    gone = published(replica, model="m")
    capacity.withdraw(run=gone, reason="A neighbour was active.")
    capacity.request(replica=replica, in_s=600)
    text = Client().get("/status/").content.decode()
    found = Client().get("/status.json").json()

    assert "will be measured" in text
    assert "A neighbour was active." in text
    assert f"<s>Serves {gone.public_id}.</s>" in text
    assert [one["sentence"] for one in found["capacity"]] == [f"Serves {kept.public_id}."]
    assert found["batch_jobs_stalled"] == 0
