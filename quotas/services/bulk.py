"""Changes of many limits at once: first a preview, then all of them or none.

A preview is a list of changes, each with the edition of the row it was made from. Applying
compares every edition under the books' write lock, so two administrators, or a page and a CSV,
cannot overwrite each other.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db.models import F, Q
from django.utils import timezone

from quotas import resolve
from quotas.limits import LimitSpec, find
from quotas.models import Group, LimitRow, User
from quotas.picture import Scope, limit_rows
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
    """Make every change, or none when a row is no longer as the preview saw it.

    However many people it reaches, it is written by a few statements and published once.
    """
    with books.writing(_scope(changes)):
        plan = _Plan(_rows_of(changes))
        for change in changes:
            try:
                plan.add(change)
            except ValidationError as error:
                raise ValidationError(f"{change.who}: {'; '.join(error.messages)}") from error
        plan.write()
    return len(changes)


# What tells a row from all others: level, whose, class, limit, per, and whether it is lasting.
_Same = tuple[str, int | None, str, str, str, bool]


def _scope(changes: Sequence[Change]) -> Scope | None:
    """Return whose keys change; None: everybody's may."""
    scopes = [change.holder.scope for change in changes]
    known = [scope for scope in scopes if scope is not None]
    if len(known) < len(scopes):
        return None
    return Scope(
        user_ids=frozenset().union(*(scope.user_ids for scope in known)),
        key_pks=frozenset().union(*(scope.key_pks for scope in known)),
    )


def _rows_of(changes: Sequence[Change]) -> dict[_Same, LimitRow]:
    holders = [change.holder for change in changes]
    concerned = (
        Q(level="everyone")
        | Q(group__in=[h.group for h in holders if h.group])
        | Q(user__in=[h.user for h in holders if h.user])
        | Q(key__in=[h.key for h in holders if h.key])
    )
    rows = LimitRow.objects.filter(concerned, name__in={change.name for change in changes})
    return {
        (
            row.level, row.group_id or row.user_id or row.key_id, row.service_class, row.name,
            row.per, row.ends_at is None,
        ): row
        for row in rows
    }  # fmt: skip


class _Plan:
    """What many changes come to, row by row; nothing is written before all are known to fit."""

    def __init__(self, rows: dict[_Same, LimitRow]) -> None:
        self._rows = rows
        self._made: list[LimitRow] = []
        self._changed: list[LimitRow] = []
        self._gone: list[int] = []

    def add(self, change: Change) -> None:
        """Take up a change, or refuse it as one alone would be."""
        if change.is_cleared:
            self._clear(change)
            return
        names = change.after if isinstance(change.after, tuple) else None
        value = None if isinstance(change.after, tuple) else change.after
        limits.check(
            holder=change.holder, service_class=change.service_class, name=change.name,
            per=change.per, value=value, names=names, ends_at=change.ends_at,
        )  # fmt: skip
        same = self._same(change, is_lasting=change.ends_at is None)
        row = self._rows.get(same)
        if change.edition != (row.edition if row else 0):
            raise ValidationError(limits.CHANGED_MEANWHILE)
        if row is None:
            holder = change.holder
            row = self._rows[same] = LimitRow(
                level=holder.level, group=holder.group, user=holder.user, key=holder.key,
                service_class=change.service_class, name=change.name, per=change.per,
            )  # fmt: skip
            self._made.append(row)
        else:
            row.edition += 1
            self._changed.append(row)
        row.value, row.names = value, None if names is None else sorted(set(names))
        row.ends_at, row.note, row.set_at = change.ends_at, change.note, timezone.now()
        # The holder was read from the books; asking for it again is a query for each row.
        row.clean_fields(exclude={"group", "user", "key"})

    def _clear(self, change: Change) -> None:
        both = [self._same(change, is_lasting=lasting) for lasting in (True, False)]
        found = [self._rows.pop(same) for same in both if same in self._rows]
        if change.edition and change.edition not in {row.edition for row in found}:
            raise ValidationError(limits.CHANGED_MEANWHILE)
        self._gone += [row.pk for row in found]

    @staticmethod
    def _same(change: Change, *, is_lasting: bool) -> _Same:
        holder = change.holder
        thing = holder.group or holder.user or holder.key
        return (
            holder.level, thing.pk if thing else None, change.service_class, change.name,
            change.per, is_lasting,
        )  # fmt: skip

    def write(self) -> None:
        """Write it all; triggers put each row into the audit trail."""
        LimitRow.objects.filter(pk__in=self._gone).delete()
        LimitRow.objects.bulk_create(self._made)
        # Most changes of many set all of them to the same; one statement for each such value.
        alike: dict[tuple[object, ...], list[LimitRow]] = defaultdict(list)
        for row in self._changed:
            alike[row.value, tuple(row.names or ()), row.ends_at, row.note].append(row)
        for (first, *_), pks in ((rows, [row.pk for row in rows]) for rows in alike.values()):
            LimitRow.objects.filter(pk__in=pks).update(
                value=first.value, names=first.names, ends_at=first.ends_at, note=first.note,
                edition=F("edition") + 1, set_at=first.set_at,
            )  # fmt: skip
