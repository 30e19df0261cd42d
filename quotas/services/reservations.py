"""Reserving slots of a pool for a group, by calendar.

While a reservation of n slots runs, everybody outside the group together gets at most the pool's
slots less n, whether the group uses them or not (docs/scheduler.md). Reservations are published
with the fleet, so the ledger keeps them; one begins and ends by itself at the next publication.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Sum
from django.utils import timezone

from quotas.models import Group, Pool, Replica, Reservation
from quotas.occurrences import WEEK, busiest
from quotas.reserved import LONGEST, since, times
from quotas.services import books
from quotas.services.engines import NO_KEYS


def reserve(
    *,
    group: Group,
    pool: Pool,
    slots: int,
    starts_at: dt.datetime,
    ends_at: dt.datetime,
    weeks: int = 1,
    note: str = "",
) -> Reservation:
    """Keep slots for the group; refused where the pool has not so many left at any instant."""
    made = Reservation(
        group=group,
        pool=pool,
        slots=slots,
        starts_at=starts_at,
        ends_at=ends_at,
        weeks=weeks,
        note=note.strip(),
    )
    with books.writing(NO_KEYS):
        check(made)
        made.save()
    return made


def change(*, reservation: Reservation, **changes: Any) -> Reservation:
    """Change named fields; held against all other reservations again."""
    with books.writing(NO_KEYS):
        reservation = Reservation.objects.select_for_update().get(pk=reservation.pk)
        for field, value in changes.items():
            setattr(reservation, field, value)
        check(reservation)
        reservation.save()
    return reservation


def cancel(*, reservation: Reservation) -> None:
    """Give the slots back to everybody, those of weeks to come as well."""
    with books.writing(NO_KEYS):
        reservation.delete()


def check(wanted: Reservation) -> None:
    """Refuse what makes no sense, and what does not fit beside the other reservations.

    Holds only while the books' write lock is held: call it inside `books.writing`.
    """
    wanted.full_clean()
    if wanted.ends_at - wanted.starts_at > (LONGEST if wanted.weeks == 1 else WEEK):
        most = "a week, when it recurs weekly" if wanted.weeks > 1 else f"{LONGEST.days} days"
        raise ValidationError({"ends_at": f"At most {most}."})
    mine = times(wanted)
    if mine[-1].ends_at <= timezone.now():
        raise ValidationError({"ends_at": "That is over already."})
    slots = slots_of(wanted.pool)
    if wanted.slots > slots:
        raise ValidationError({"slots": f"{wanted.pool} has {slots} slots."})
    others = list(
        since(timezone.now()).filter(pool=wanted.pool).exclude(pk=wanted.pk).order_by("pk")
    )
    names = [(other, one) for other in others for one in times(other)]
    taken = [(one, other.slots) for other, one in names]
    for one in mine:
        at, used, by = busiest(one, taken)
        if used + wanted.slots > slots:
            listed = ", ".join(f"{names[i][0].slots} for {names[i][0].group.name}" for i in by)
            local = timezone.localtime(at)
            raise ValidationError(
                {
                    "slots": f"On {local:%Y-%m-%d} at {local:%H:%M} {used} of the {slots} slots "
                    f"are reserved already ({listed}); {wanted.slots} more do not fit."
                }
            )


def slots_of(pool: Pool) -> int:
    """Return the slots of the pool's replicas, except those taken out of service."""
    replicas = Replica.objects.filter(pool=pool).exclude(state=Replica.State.DISABLED)
    total: int | None = replicas.aggregate(n=Sum("slots"))["n"]
    return total or 0
