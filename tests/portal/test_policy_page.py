"""Trying a policy: an administrator asks, a worker plays, both sides stand on one page."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.utils import timezone

from portal import tasks
from portal.policy import forms, trials
from quotas.models import User
from tests.portal.usage import event, hour

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_gateway")]


@pytest.fixture
def used(alice: User) -> None:
    """Let Alice chat, and her batch work wait beside it."""
    now = timezone.now() - dt.timedelta(hours=2)
    for n in range(20):
        event(
            alice.pk, n, arrived_at=now + dt.timedelta(seconds=n), queue_wait_ms=0,
            duration_ms=20_000, service_class=("interactive", "batch")[n % 2],
        ).save()  # fmt: skip
    hour(alice.pk, now).save()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the trials a worker was asked for; none runs by itself."""
    found: list[str] = []
    monkeypatch.setattr(tasks.try_policy, "delay", found.append)
    return found


def text_of(answer: Any) -> str:
    return " ".join(re.sub("<[^>]*>", " ", answer.content.decode()).split())


def test_every_number_of_the_form_can_be_tried() -> None:
    """The form's names are those of the command, so nothing asked is lost on the way."""
    from gateway.management.commands.simulate import CHANGEABLE

    numbers = set(forms.TryForm.base_fields) - {"model", "days", "handicap_min"}
    assert numbers < set(CHANGEABLE)
    assert "handicap_ms" in CHANGEABLE


@pytest.mark.usefixtures("used")
def test_both_sides_are_shown(admin: User, as_user: Any, asked: list[str]) -> None:
    """
    What was asked is played by a worker; the page says so until then, and stops asking when both
    sides are there.
    """
    browser = as_user(admin)
    model = forms.used_models()[0]
    there = browser.post("/policy/", {"model": model, "days": 1, "batch_slots": 3})["Location"]
    before = text_of(browser.get(there))
    assert "Waiting for a worker" in before
    assert asked == [there.split("/")[2]]
    assert browser.get(f"/live{there}").status_code == 200

    tasks.try_policy(asked[0])

    live = browser.get(f"/live{there}")
    assert live.status_code == 286
    found = trials.read(asked[0])
    assert found is not None
    assert found.state == trials.DONE, found.told
    assert [side["name"] for side in found.sides] == ["as it is", "as tried"]
    assert "Batch requests served 10 10" in text_of(live)
    assert "3,600 100 % 100 % 100 % 100 %" in text_of(live)
    assert "Slots for batch while somebody chats 3" in text_of(browser.get(there))


@pytest.mark.usefixtures("used")
def test_what_cannot_be_played_says_why(admin: User, as_user: Any, asked: list[str]) -> None:
    """Nothing to change, nonsense, and a model nobody asked for: each is said in a sentence."""
    browser, model = as_user(admin), forms.used_models()[0]
    ask = {"model": model, "days": 1}

    assert "at least one number" in text_of(browser.post("/policy/", ask))
    assert "greater than or equal" in text_of(browser.post("/policy/", ask | {"slots": 0}))
    assert asked == []
    lost = trials.ask("never-used", 1, (("slots", 2),), "admin")
    trials.play(lost.trial_id)
    assert "Nobody asked for never-used" in text_of(browser.get(f"/policy/{lost.trial_id}/"))
    assert browser.get("/policy/nothing/").status_code == 404


def test_it_is_for_administrators(alice: User, as_user: Any) -> None:
    """An ordinary person is sent away, and an empty portal says that there is nothing to play."""
    assert as_user(alice).get("/policy/").status_code == 302
    root = User.objects.create_user("root", is_staff=True)
    assert "nothing to play yet" in text_of(as_user(root).get("/policy/"))
