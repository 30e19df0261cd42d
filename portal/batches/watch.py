"""Tells whether somebody sends lines, from the leases in the rows."""

from __future__ import annotations

import time

from django.db.models import Q
from django.utils import timezone

from portal.batches.models import BatchJob, Lane
from portal.batches.states import SENDING


def live_runners() -> int:
    """Return how many runners hold lanes now."""
    held = Lane.objects.filter(lease_end__gt=timezone.now()).exclude(lease_owner="")
    return held.values("lease_owner").distinct().count()


def may_open_a_room(most: int) -> bool:
    """Tell whether one more runner is wanted: lanes are free and fewer than `most` send."""
    return live_runners() < most


def _owners_with_lines() -> list[int]:
    now = timezone.now()
    due = Q(wait_until__isnull=True) | Q(wait_until__lte=now)
    jobs = BatchJob.objects.filter(due, state__in=SENDING, expires_at__gt=now)
    return list(jobs.values_list("owner", flat=True).distinct())


def lines_wait_for_nobody() -> bool:
    """Tell whether jobs have lines to send while no runner holds their lane."""
    owners = _owners_with_lines()
    held = Lane.objects.filter(owner__in=owners, lease_end__gt=timezone.now()).count()
    return held < len(owners)


def wait_for_dead_runner(longest_s: float, pause_s: float = 0.5) -> bool:
    """Wait until a lane with lines is free; False when its holder shows that it lives."""
    seen = dict(Lane.objects.exclude(lease_owner="").values_list("owner", "lease_end"))
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        if lines_wait_for_nobody():
            return True
        now = dict(Lane.objects.exclude(lease_owner="").values_list("owner", "lease_end"))
        if any(end is not None and end != seen.get(owner) for owner, end in now.items()):
            return False
        time.sleep(pause_s)
    return lines_wait_for_nobody()
