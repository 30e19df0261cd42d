"""The quota card: each limit that binds a person, how much of it is used, and when it resets."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.conf import settings

from portal import charts
from portal.status.source import Heard
from quotas import reports
from quotas.models import User
from quotas.reports import Only, Period
from quotas.resolve import Effective
from quotas.services import limits
from quotas.snapshots import windows
from quotas.snapshots.live import QueuedLive, RunningLive

CLASSES = ("interactive", "batch")
LEVELS = {
    "default": "default for everyone",
    "everyone": "set for everyone",
    "group": "from your group",
    "user": "set for you",
    "key": "set for the key",
}
OVER = {"key": "each key", "person": "you, over all keys", "group": "your whole group"}


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit and its use; used None is unknown."""

    label: str
    service_class: str
    over: str
    used: int | None
    limit: int
    unit: str
    origin: str
    resets_at: dt.datetime | None
    window: str
    binds_first: bool = False

    @property
    def width(self) -> float:
        """Return the filled part in per cent."""
        return charts.gauge_width(self.used or 0, self.limit)

    @property
    def fill(self) -> str:
        """Return the class of the filled part."""
        if self.used is not None and self.used >= self.limit:
            return "g-full"
        return "g-binds" if self.binds_first else "g-fill"


def card(person: User, heard: Heard, now: dt.datetime) -> list[Gauge]:
    """Return the gauges of both classes; at most one says that it binds first."""
    effective = {name: limits.effective(user=person, service_class=name) for name in CLASSES}
    tokens = _tokens(person, effective, now)
    gauges = [
        gauge
        for name in CLASSES
        for item in effective[name]
        if (gauge := _gauge(person, item, heard, tokens, now)) is not None
    ]
    return with_first(gauges)


def with_first(gauges: list[Gauge]) -> list[Gauge]:
    """Mark the limit that is nearest to being used up, once half of it is."""
    known = [gauge for gauge in gauges if gauge.used is not None and gauge.limit]
    first = max(known, key=lambda gauge: (gauge.used or 0) / gauge.limit, default=None)
    if first is None or (first.used or 0) * 2 < first.limit:
        return gauges
    return [replace(gauge, binds_first=True) if gauge is first else gauge for gauge in gauges]


def _gauge(
    person: User,
    item: Effective,
    heard: Heard,
    tokens: dict[tuple[str, str, str], int],
    now: dt.datetime,
) -> Gauge | None:
    if item.spec.is_list or item.value is None or item.spec.name.startswith("max_"):
        return None
    window = item.spec.window
    if window in {"day", "month"}:
        used: int | None = tokens.get((item.service_class, item.per, window))
        day = windows.local_date(now, settings.TIME_ZONE)
        resets = _reset(window, day)
    else:
        used, resets = _live(person, item, heard), None
    return Gauge(
        label=item.spec.label,
        service_class=item.service_class,
        over=OVER[item.per],
        used=used,
        limit=item.value,
        unit=item.spec.unit,
        origin=LEVELS[item.level],
        resets_at=resets,
        window=window,
    )


def _reset(window: str, day: dt.date) -> dt.datetime:
    if window == "day":
        following = day + dt.timedelta(days=1)
    else:
        following = (day.replace(day=1) + dt.timedelta(days=32)).replace(day=1)
    return windows.start_of(following, settings.TIME_ZONE)


def _live(person: User, item: Effective, heard: Heard) -> int | None:
    """Return what runs or waits now; per key, of the key that has most."""
    if heard.live is None:
        return None
    tickets: Sequence[QueuedLive | RunningLive]
    if item.spec.name == "in_flight":
        tickets = heard.live.running
    elif item.spec.name == "queued":
        tickets = heard.live.queued
    else:
        return None
    own = [
        t for t in tickets if t.user_id == str(person.pk) and t.service_class == item.service_class
    ]
    if item.per == "person":
        return len(own)
    return max(Counter(t.key_id for t in own).values(), default=0) if item.per == "key" else None


def _tokens(
    person: User, effective: dict[str, list[Effective]], now: dt.datetime
) -> dict[tuple[str, str, str], int]:
    """Return tokens by (class, per, window); asked only for limits that exist."""
    wanted = {
        (item.service_class, item.per, item.spec.window)
        for items in effective.values()
        for item in items
        if item.value is not None and item.spec.window in {"day", "month"} and item.per != "key"
    }
    today = windows.local_date(now, settings.TIME_ZONE)
    return {
        (name, per, window): reports.total(
            Period(today if window == "day" else today.replace(day=1), today),
            Only(service_class=name, user_id=person.pk)
            if per == "person"
            else Only(service_class=name, group_id=person.group_id),
        ).tokens
        for name, per, window in wanted
        if per == "person" or person.group_id is not None
    }
