"""The quota grid: everybody's default, group value, override and effective value side by side."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils import timezone

from quotas import resolve
from quotas.limits import find
from quotas.models import LimitRow, User
from quotas.picture import limit_rows


@dataclass(frozen=True, slots=True)
class Cell:
    """A value set at one level."""

    value: int | None  # None: no limit
    ends_at: dt.datetime | None
    note: str
    edition: int


@dataclass(frozen=True, slots=True)
class GridRow:
    """One person's line; `default` is what holds for everyone (set, or by the product)."""

    user: User
    group_name: str
    default: int | None
    group: Cell | None
    override: Cell | None  # what is in force at the person's own level
    lasting_edition: int  # of the person's lasting row, for the edit; 0: there is none
    effective: int | None
    effective_level: str


def people(*, group_id: int | None = None, search: str = "") -> QuerySet[User]:
    """Return whom a grid shows, by group and name."""
    found = User.objects.filter(erased_at__isnull=True).select_related("group")
    if group_id is not None:
        found = found.filter(group_id=group_id)
    if search:
        found = found.filter(username__icontains=search)
    return found.order_by("group__name", "username")


def rows(
    *, who: QuerySet[User], service_class: str, name: str, per: str = "",
    now: dt.datetime | None = None,
) -> Iterator[GridRow]:  # fmt: skip
    """Yield the grid's lines for one limit and class: two queries, however many people."""
    try:
        spec = find(name)
    except LookupError as error:
        raise ValidationError({"name": str(error)}) from error
    per = per or spec.usual_per("user")
    found = LimitRow.objects.filter(service_class=service_class, name=name, per=per)
    indexed = resolve.index(limit_rows(found), now or timezone.now())
    for user in who:
        target = resolve.Target(group_id=user.group_id, user_id=user.pk)
        explained = resolve.explain(indexed, target, service_class, [spec])
        item = next(item for item in explained if item.per == per)
        by_level = item.by_level or {}
        everyone = by_level.get("everyone")
        own = indexed.get(("user", user.pk), ())
        lasting = next((row for row in own if row.ends_at is None), None)
        yield GridRow(
            user=user,
            group_name=user.group.name if user.group else "",
            default=everyone.value if everyone else spec.default(service_class, per),
            group=_cell(by_level.get("group")),
            override=_cell(by_level.get("user")),
            lasting_edition=lasting.edition if lasting else 0,
            effective=item.value,
            effective_level=item.level,
        )


def _cell(row: resolve.Row | None) -> Cell | None:
    return None if row is None else Cell(row.value, row.ends_at, row.note, row.edition)
