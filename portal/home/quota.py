"""The quota card: each limit that binds a person, how much of it is used, and when it resets."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from portal import charts
from portal.batches import enqueued
from portal.status import source
from portal.status.source import Heard
from quotas.models import User
from quotas.resolve import Effective
from quotas.services import limits
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
    items = [
        item
        for name in CLASSES
        for item in limits.effective(user=person, service_class=name)
        if item.value is not None and not item.spec.name.startswith("max_")
    ]
    counted = counts(person, [item for item in items if item.spec.window], now)
    return with_first([_gauge(person, item, heard, counted) for item in items])


def with_first(gauges: list[Gauge]) -> list[Gauge]:
    """Mark the limit that is nearest to being used up, once half of it is."""
    known = [gauge for gauge in gauges if gauge.used is not None and gauge.limit]
    first = max(known, key=lambda gauge: (gauge.used or 0) / gauge.limit, default=None)
    if first is None or (first.used or 0) * 2 < first.limit:
        return gauges
    return [replace(gauge, binds_first=True) if gauge is first else gauge for gauge in gauges]


def _gauge(person: User, item: Effective, heard: Heard, counted: Counts) -> Gauge:
    count = counted.get(_which(item))
    return Gauge(
        label=item.spec.label,
        service_class=item.service_class,
        over=OVER[item.per],
        used=count.used if count else _live(person, item, heard),
        limit=item.value or 0,
        unit=item.spec.unit,
        origin=LEVELS[item.level],
        resets_at=count.resets_at if count else None,
        window=item.spec.window,
    )


def _live(person: User, item: Effective, heard: Heard) -> int | None:
    """Return what runs or waits now; per key, of the key that has most."""
    if item.spec.name == enqueued.NAME:
        return (
            enqueued.of_person(person)
            if item.per == "person"
            else enqueued.of_group(person.group_id)
        )
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


@dataclass(frozen=True, slots=True)
class Count:
    """How much of one counted limit is used, as the gate counts it."""

    used: int
    resets_at: dt.datetime | None


Counts = dict[tuple[str, str, str], Count]


def _which(item: Effective) -> tuple[str, str, str]:
    return item.service_class, item.spec.name, item.per


def counts(person: User, items: list[Effective], now: dt.datetime) -> Counts:
    """Ask the gateway where the limits stand; of those of each key, the fullest is told."""
    counted = {
        "person": [str(person.pk)],
        "group": [] if person.group_id is None else [str(person.group_id)],
        "key": [],
    }
    if any(item.per == "key" for item in items):
        counted["key"] = [k.public_id for k in person.keys.all() if k.state(now) == "live"]
    asked = [(item, who) for item in items for who in counted[item.per]]
    told = source.here().quotas(
        [
            {
                "name": item.spec.name,
                "per": item.per,
                "level": item.level,
                "service_class": item.service_class,
                "identity": who,
                "limit": item.value,
            }
            for item, who in asked
        ]
    )
    found: Counts = {}
    for (item, _), line in zip(asked, told or (), strict=False):
        name = _which(item)
        if name not in found or line["used"] > found[name].used:
            at = line["resets_at"]
            ends = None if at is None else dt.datetime.fromtimestamp(at, dt.UTC)
            found[name] = Count(line["used"], ends if item.spec.window != "minute" else None)
    return found
