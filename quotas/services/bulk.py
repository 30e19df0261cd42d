"""Changes of many limits at once: first a preview, then all of them or none.

A preview is a list of changes, each with the edition of the row it was made from. Applying
compares every edition under the books' write lock, so two administrators, or a page and a CSV,
cannot overwrite each other.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db.models import Q
from django.utils import timezone

from quotas import resolve
from quotas.limits import LimitSpec, find
from quotas.models import Group, LimitRow, User
from quotas.picture import limit_rows
from quotas.services import books, limits
from quotas.services.limits import Holder


@dataclass(frozen=True, slots=True)
class Operation:
    """What to do with each: raise the effective value, set one, or take the override away."""

    kind: str  # raise, set, expire
    percent: int = 0
    value: int | None = None
    ends_at: dt.datetime | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One limit of one holder, before and after; nothing is changed yet."""

    holder: Holder
    who: str
    service_class: str
    name: str
    per: str
    before: int | tuple[str, ...] | None
    before_level: str
    after: int | tuple[str, ...] | None
    is_cleared: bool = False
    ends_at: dt.datetime | None = None
    note: str = ""
    edition: int = 0  # of the row that would change; 0: there is none


def preview(
    *,
    operation: Operation,
    people: Iterable[User] = (),
    in_groups: Iterable[Group] = (),
    of_everyone: bool = False,
    service_class: str,
    name: str,
    per: str = "",
) -> list[Change]:
    """Return what would change, at every level at once. A fixed number of queries."""
    holders = [Holder(user=user) for user in people] + [Holder(group=group) for group in in_groups]
    holders += [limits.EVERYONE] * of_everyone
    everyone_s = Q(level="everyone")
    mine = Q(user__in=[h.user for h in holders if h.user])
    groups_of = {h.user.group_id for h in holders if h.user} | {
        h.group.pk for h in holders if h.group
    }
    rows = LimitRow.objects.filter(
        everyone_s | mine | Q(group__in=groups_of - {None}),
        service_class=service_class,
        name=name,
    )
    indexed = resolve.index(limit_rows(rows), timezone.now())
    found = [_change(holder, operation, service_class, name, per, indexed) for holder in holders]
    return [change for change in found if change is not None]


def _change(
    holder: Holder,
    operation: Operation,
    service_class: str,
    name: str,
    per: str,
    indexed: resolve.Index,
) -> Change | None:
    spec = find(name)
    per = per or spec.usual_per(holder.level)
    effective = _binding(indexed, holder, service_class, spec, per)
    own = (effective.by_level or {}).get(holder.level)
    after = _after(operation, effective.value)
    is_cleared = operation.kind == "expire"
    lasting = operation.ends_at is None
    touched = own if is_cleared else _touched(indexed, holder, per, is_lasting=lasting)
    if (is_cleared and own is None) or (not is_cleared and after is None):
        return None  # nothing to take away, or no number to raise
    if not is_cleared:
        limits.check_value(spec, after)
    if is_cleared:
        wider = resolve.without(indexed, holder.level)
        after = _binding(wider, holder, service_class, spec, per).value
    return Change(
        holder=holder,
        who=str(holder.user or holder.group or "everyone"),
        service_class=service_class,
        name=name,
        per=per,
        before=effective.value,
        before_level=effective.level,
        after=after,
        is_cleared=is_cleared,
        ends_at=operation.ends_at,
        note=operation.note,
        edition=touched.edition if touched else 0,
    )


def _binding(
    rows: resolve.Index, holder: Holder, service_class: str, spec: LimitSpec, per: str
) -> resolve.Effective:
    found = resolve.explain(rows, _target(holder), service_class, [spec])
    return next(item for item in found if item.per == per)


def _after(operation: Operation, before: int | None) -> int | None:
    if operation.kind == "set":
        return operation.value
    if operation.kind == "raise" and before is not None:
        return -(-before * (100 + operation.percent) // 100)  # rounded up: a raise raises
    return None


def _target(holder: Holder) -> resolve.Target:
    if holder.user is not None:
        return resolve.Target(group_id=holder.user.group_id, user_id=holder.user.pk)
    return resolve.Target(group_id=holder.group.pk if holder.group else None)


def _touched(
    indexed: resolve.Index, holder: Holder, per: str, *, is_lasting: bool
) -> resolve.Row | None:
    thing = holder.user or holder.group
    rows = indexed.get((holder.level, thing.pk if thing else None), ())
    same = (row for row in rows if row.per == per and (row.ends_at is None) == is_lasting)
    return next(same, None)


def apply(*, changes: Sequence[Change]) -> int:
    """Make every change, or none when a row is no longer as the preview saw it."""
    with books.writing():
        for change in changes:
            try:
                _apply(change)
            except ValidationError as error:
                raise ValidationError(f"{change.who}: {'; '.join(error.messages)}") from error
    return len(changes)


def _apply(change: Change) -> None:
    if change.is_cleared:
        limits.clear_limit(
            holder=change.holder,
            service_class=change.service_class,
            name=change.name,
            per=change.per,
            edition=change.edition or None,
        )
        return
    is_list = isinstance(change.after, tuple)
    limits.set_limit(
        holder=change.holder,
        service_class=change.service_class,
        name=change.name,
        per=change.per,
        value=None if isinstance(change.after, tuple) else change.after,
        names=change.after if is_list and isinstance(change.after, tuple) else None,
        ends_at=change.ends_at,
        note=change.note,
        edition=change.edition,
    )
