"""Sums up what was used in the running day and month and publishes it for the gateways."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import redis
from django.conf import settings
from django.db.models import F, Q, Sum

from quotas import stores
from quotas.limits import SPECS
from quotas.models import LimitRow, UsageHour
from quotas.snapshots import windows
from quotas.snapshots.counters import AS_OF, USED, ZONE, field

SPECS_OF_CALENDAR = tuple(spec for spec in SPECS if spec.window in {"day", "month"})
WINDOWED = tuple(spec.name for spec in SPECS_OF_CALENDAR)
OLD_S = 60.0
_TOKENS = F("prompt_tokens") + F("completion_tokens")


def is_needed() -> bool:
    """Tell whether anybody has a limit that is counted over a day or a month."""
    return LimitRow.objects.filter(name__in=WINDOWED).exists()


def counters(now: dt.datetime) -> dict[str, int]:
    """Return every counter of the running day and month that is not zero. One query.

    The hourly rollup is written with the rows it sums, and its hours are those of the reporting
    zone, so no row of the raw table is needed for the current hour.
    """
    day = windows.day(now, settings.TIME_ZONE)
    month = windows.month(now, settings.TIME_ZONE)
    used: Counter[str] = Counter()
    hours = (
        UsageHour.objects.filter(hour__gte=month.start, hour__lt=month.end)
        .values_list("key_id", "user_id", "group_id", "end_user", "service_class")
        .annotate(of_month=Sum(_TOKENS), of_day=Sum(_TOKENS, filter=Q(hour__gte=day.start)))
    )
    for key_id, user_id, group_id, end_user, service_class, of_month, of_day in hours.iterator():
        person = f"{user_id}/{end_user}" if end_user else str(user_id)
        counted = {"key": key_id, "person": person, "group": group_id}
        for per, identity in counted.items():
            if identity is None:
                continue
            used[field(month.name, service_class, per, str(identity))] += of_month
            used[field(day.name, service_class, per, str(identity))] += of_day or 0
    return {name: tokens for name, tokens in used.items() if tokens}


def is_old(client: redis.Redis, *, now: dt.datetime) -> bool:
    """Tell whether what is published may miss a window: a limit was just set, or nobody wrote."""
    raw: list[Any] = client.hmget(USED, [AS_OF, ZONE])
    as_of, zone = raw
    if as_of is None or zone is None or zone.decode() != settings.TIME_ZONE:
        return True
    return now.timestamp() - float(as_of) > OLD_S


def publish(*, now: dt.datetime) -> None:
    """Replace the published counters as a whole."""
    found = counters(now)
    with stores.connect().pipeline(transaction=True) as pipe:
        pipe.delete(USED)
        pipe.hset(USED, mapping={AS_OF: repr(now.timestamp()), ZONE: settings.TIME_ZONE})
        if found:
            pipe.hset(USED, items=[part for pair in found.items() for part in pair])
        pipe.execute()
