"""Rules of what owners are told without asking."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from portal.batches import notices
from portal.batches.models import BatchJob
from quotas.models import User
from tests.batches.helpers import ApiClient, lines

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_gateway(settings: Any) -> None:
    """Let nobody listen where the gateway would."""
    settings.GATEWAY_URL = "http://127.0.0.1:9"


def silent_for(api: ApiClient, minutes: float) -> BatchJob:
    """Return a job whose last line ended so long ago."""
    job = BatchJob.objects.get(public_id=api.submit(lines(3)))
    job.state = "in_progress"
    job.last_line_at = timezone.now() - dt.timedelta(minutes=minutes)
    job.save()
    return job


@pytest.mark.parametrize(("minutes", "told"), [(29, 0), (31, 2)])
def test_a_silence_of_half_an_hour_is_told_once(
    api: ApiClient, admin: User, minutes: float, told: int
) -> None:
    """Owner and admins hear of it, and only once for the same silence."""
    silent_for(api, minutes)

    notices.send_due()
    notices.send_due()

    assert len(mail.outbox) == told
    assert {message.to[0] for message in mail.outbox} == (
        {"alice@example.org", admin.email} if told else set()
    )


def test_a_new_silence_is_told_again(api: ApiClient) -> None:
    """A line that ends in between begins a new silence."""
    job = silent_for(api, 60)
    notices.send_due()
    BatchJob.objects.update(
        last_line_at=timezone.now() - dt.timedelta(minutes=40),
        stalled_notice_at=timezone.now() - dt.timedelta(minutes=50),
    )

    notices.send_due()

    assert [m.subject for m in mail.outbox] == [
        f"[Fairway] {job.name}: no line has ended for a while"
    ] * 2


def test_the_end_of_a_job_is_told_once(api: ApiClient) -> None:
    """One mail, with the counts and the address of the batch."""
    job = silent_for(api, 0)
    BatchJob.objects.update(state="cancelled", cancelled_at=timezone.now(), completed=2)

    notices.send_due()
    notices.send_due()

    (message,) = mail.outbox
    assert "Lines done:   2 of 3" in message.body
    assert job.public_id in message.body
