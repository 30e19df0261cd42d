"""Medians and 95th percentiles on the usage page."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils import timezone

from portal.usage import middles
from portal.usage.middles import Middle
from quotas.models import UsageEvent
from tests.portal.usage import event, hour

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url", "gateway")]


def waits(user_id: int, found: list[int | None]) -> None:
    """Write one request a minute, newest first, with these waits in milliseconds."""
    UsageEvent.objects.bulk_create(
        event(user_id, n, queue_wait_ms=wait, ttft_ms=None, duration_ms=1000 + n)
        for n, wait in enumerate(found)
    )


def test_half_and_nearly_all_are_told_and_what_is_unknown_is_left_out(alice: Any) -> None:
    """Of 1 to 100 ms the median is 50 and 19 of 20 are within 95; unserved ones do not count."""
    waits(alice.pk, [*range(1, 101), None, None])
    UsageEvent.objects.bulk_create([event(alice.pk + 1, 900, queue_wait_ms=10**6)])
    now = timezone.now()

    found = middles.of_person(alice.pk, now - dt.timedelta(days=1), now)

    assert found.wait == Middle(50, 95)
    assert found.first_word is None
    assert (found.requests, found.is_cut) == (102, False)
    newest = middles.of_person(alice.pk, now - dt.timedelta(days=1), now, most=10)
    assert (newest.wait, newest.requests) == (Middle(5, 10), 10)


def test_the_usage_page_shows_them(alice: Any, as_user: Any) -> None:
    """The page names median and 95th percentile of the range; without requests it says none."""
    browser = as_user(alice)
    assert "Wait, median" in browser.get("/usage/").content.decode()

    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    hour(alice.pk, now, requests=100).save()
    waits(alice.pk, [n * 100 for n in range(1, 101)])
    page = browser.get("/usage/?range=7d").content.decode()

    assert '5.0<span class="unit"> s</span>' in page
    assert "19 of 20 within 9.5 s" in page
