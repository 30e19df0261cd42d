"""The fairness page: in full for administrators, one's own place for everybody."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from portal.fairness import kept
from portal.templatetags.shares import share
from quotas.models import User
from tests.portal.usage import event

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_gateway")]


@pytest.fixture(autouse=True)
def _fresh(redis_url: str) -> None:
    """Let each test make its own report."""
    cache.clear()


@pytest.fixture
def used(alice: User, bob: User) -> None:
    """Let Alice hold a slot for ten seconds while Bob waits behind her."""
    now = timezone.now() - dt.timedelta(minutes=5)
    event(alice.pk, 1, arrived_at=now, queue_wait_ms=0, duration_ms=10_000).save()
    event(bob.pk, 2, arrived_at=now, queue_wait_ms=10_000, duration_ms=12_000).save()


@pytest.mark.usefixtures("used")
def test_an_administrator_sees_everybody(admin: User, as_user: Any) -> None:
    """
    Shares, waits, and who waited behind whom are there by name.
    """
    text = as_user(admin).get("/fairness/?days=1").content.decode()

    assert "Who waited behind whom" in text
    assert "alice" in text
    assert "bob" in text
    assert "Evenness, interactive" in text


@pytest.mark.usefixtures("used")
def test_a_person_sees_only_themselves(bob: User, as_user: Any) -> None:
    """
    One's own share and wait stand beside the median; nobody else's name is on the page.
    """
    text = as_user(bob).get("/fairness/").content.decode()
    told = as_user(bob).get("/fairness/?format=json").json()

    assert "alice" not in text
    assert "10.0 s" in text
    assert set(told) == {"own", "jain_slots", "jain_tokens", "requests", "cut"}
    assert told["own"]["interactive"]["people"] == 2


def test_a_quiet_week_says_so(charlie: User, as_user: Any) -> None:
    """
    Who asked for nothing is told so, and strangers are sent to sign in.
    """
    assert "You asked for nothing" in as_user(charlie).get("/fairness/").content.decode()


@pytest.mark.parametrize(("value", "text"), [(0.0, "0 %"), (0.054, "5.4 %"), (0.333, "33 %")])
def test_shares_are_per_cent(value: float, text: str) -> None:
    """
    Small shares keep a decimal, large ones do not need it.
    """
    assert share(value) == text


@pytest.mark.usefixtures("used")
def test_an_old_report_is_shown_with_its_age_while_a_new_one_is_made(
    alice: User, as_user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page never waits for the work twice: it shows what there is and asks a worker once."""
    asked: list[int] = []
    monkeypatch.setattr(kept.tasks.refresh_fairness, "delay", asked.append)
    old = kept.refresh(7)
    cache.set("fairness-kept:7", kept.Kept(old.made_at - dt.timedelta(hours=2), old.report))

    pages = [as_user(alice).get("/fairness/").content.decode() for _ in range(2)]

    assert all("2 h ago" in page for page in pages)
    assert asked == [7]
    kept.tasks.refresh_fairness(7)
    assert "Made just now" in re.sub(
        "<[^>]*>", "", as_user(alice).get("/fairness/").content.decode()
    )
