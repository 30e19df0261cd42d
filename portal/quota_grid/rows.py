"""The grid: for one limit and class, each person's values of every level side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal import charts
from quotas import resolve
from quotas.limits import LimitSpec
from quotas.models import LimitRow, UsageHour, User
from quotas.picture import limit_rows
from quotas.reports import Period
from quotas.snapshots import windows

PAGE = 100


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of one page, and what is set for everyone."""

    rows: list[Row]
    everyone: int | None  # as set; None: not set
    default: int | None  # what holds when nobody set anything


@dataclass(frozen=True, slots=True)
class Row:
    """One person's values; None at a level is not set there."""

    person: User
    everyone: int | None
    group: int | None
    own: int | None
    has_own: bool
    effective: int | None
    level: str
    ends: object
    used: int | None

    @property
    def width(self) -> float:
        """Return the used part in per cent."""
        return charts.gauge_width(self.used or 0, self.effective or 0)

    @property
    def fill(self) -> str:
        """Return the class of the used part."""
        return "g-full" if self.width >= 100 else "g-binds" if self.width >= 80 else "g-fill"


def people(query: str, group: str) -> QuerySet[User]:
    """Return the people of a filter, group by group."""
    found = User.objects.filter(is_active=True).select_related("group")
    if query:
        found = found.filter(Q(username__icontains=query) | Q(email__icontains=query))
    if group.isascii() and group.isdigit():
        found = found.filter(group_id=int(group[:9]))
    return found.order_by("group__name", "username")


def grid(found: Iterable[User], spec: LimitSpec, service_class: str) -> Grid:
    """Return the grid of some people: two queries, however many they are."""
    shown = list(found)
    now = timezone.now()
    per = spec.usual_per("user")
    concerned = (
        Q(level="everyone")
        | Q(user__in=shown)
        | Q(group__in={p.group_id for p in shown if p.group_id})
    )
    indexed = resolve.index(
        limit_rows(LimitRow.objects.filter(concerned, name=spec.name, service_class=service_class)),
        now,
    )
    used = _used(shown, spec, service_class)
    nobody = resolve.explain(indexed, resolve.Target(), service_class, [spec])
    levels = next(one for one in nobody if one.per == per).by_level or {}
    return Grid(
        rows=[_row(person, spec, service_class, per, indexed, used) for person in shown],
        everyone=levels["everyone"].value if "everyone" in levels else None,
        default=spec.default(service_class, per),
    )


def _row(
    person: User,
    spec: LimitSpec,
    service_class: str,
    per: str,
    indexed: resolve.Index,
    used: dict[int, int] | None,
) -> Row:
    target = resolve.Target(group_id=person.group_id, user_id=person.pk)
    found = resolve.explain(indexed, target, service_class, [spec])
    item = next(one for one in found if one.per == per)
    levels = item.by_level or {}
    own = levels.get("user")
    everyone = levels.get("everyone")
    return Row(
        person=person,
        everyone=everyone.value if everyone else spec.default(service_class, per),
        group=levels["group"].value if "group" in levels else None,
        own=own.value if own else None,
        has_own=own is not None,
        effective=item.value,
        level=item.level,
        ends=item.ends_at,
        used=None if used is None else used.get(person.pk, 0),
    )


def _used(shown: list[User], spec: LimitSpec, service_class: str) -> dict[int, int] | None:
    """Return tokens used in the limit's window; limits without a calendar window have none."""
    if spec.window not in {"day", "month"}:
        return None
    today = windows.local_date(timezone.now(), settings.TIME_ZONE)
    first = today if spec.window == "day" else today.replace(day=1)
    hours = UsageHour.objects.filter(
        user_id__in=[p.pk for p in shown],
        service_class=service_class,
        hour__gte=Period(first, today).start,
    )
    sums: dict[int, int] = {}
    for user_id, read, written in hours.values_list(
        "user_id", "prompt_tokens", "completion_tokens"
    ):
        sums[user_id] = sums.get(user_id, 0) + read + written
    return sums
