"""Reads which slots are reserved now and later; `services.reservations` writes them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q, QuerySet, Sum

from quotas.models import Replica, Reservation
from quotas.occurrences import WEEK, Occurrence, occurrences, present

LONGEST = dt.timedelta(days=92)
FARTHEST = 54 * WEEK + LONGEST  # so long after its first start even the longest series is over


@dataclass(frozen=True, slots=True)
class Shown:
    """A reservation that runs or is to come, with its present occurrence."""

    reservation: Reservation
    occurrence: Occurrence
    is_running: bool
    pool_slots: int

    @property
    def next_change(self) -> dt.datetime:
        """Return when it begins, or ends if it runs."""
        return self.occurrence.ends_at if self.is_running else self.occurrence.starts_at


def running_and_coming(now: dt.datetime) -> list[Shown]:
    """Return what is not over, soonest first."""
    return sorted(_shown(now), key=lambda one: (one.occurrence.starts_at, one.reservation.pk))


def _shown(now: dt.datetime) -> Iterator[Shown]:
    in_service = ~Q(pool__replicas__state=Replica.State.DISABLED)
    slots = Sum("pool__replicas__slots", filter=in_service, default=0)
    for reservation in since(now).select_related("pool").annotate(pool_slots=slots):
        occurrence = present(times(reservation), now)
        if occurrence is not None:
            is_running = occurrence.starts_at <= now
            yield Shown(reservation, occurrence, is_running, reservation.pool_slots)


def since(now: dt.datetime) -> QuerySet[Reservation]:
    """Return the reservations whose series may still be going on, with their groups."""
    return Reservation.objects.select_related("group").filter(starts_at__gt=now - FARTHEST)


def times(reservation: Reservation) -> list[Occurrence]:
    """Return when it takes place, every week of it, by the reporting zone's calendar."""
    return occurrences(
        reservation.starts_at, reservation.ends_at, reservation.weeks, settings.TIME_ZONE
    )
