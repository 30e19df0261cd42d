"""Limits: set, clear, and say what binds and why."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db.models import Q
from django.utils import timezone

from quotas import resolve
from quotas.limits import LimitSpec, find
from quotas.models import ApiKey, Group, Level, LimitRow, ServiceClass, User
from quotas.picture import Scope, limit_rows
from quotas.services import books

NO_LIMIT = None
NO_KEYS = Scope()  # of changes that touch no key
CHANGED_MEANWHILE = "Somebody changed this limit meanwhile; look again."


@dataclass(frozen=True, slots=True)
class Holder:
    """At which level a limit is set, and for whom; nothing named means everyone."""

    group: Group | None = None
    user: User | None = None
    key: ApiKey | None = None

    @property
    def level(self) -> str:
        """Return everyone, group, user or key."""
        named = [name for name in ("group", "user", "key") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValidationError("Name one of group, user and key.")
        return named[0] if named else Level.EVERYONE

    @property
    def scope(self) -> Scope | None:
        """Return whose keys change with a limit of this holder."""
        if self.key is not None:
            return Scope(key_pks=frozenset({self.key.pk}))
        if self.user is not None:
            return Scope(user_ids=frozenset({self.user.pk}))
        return None


EVERYONE = Holder()


def set_limit(
    *,
    holder: Holder,
    service_class: str,
    name: str,
    value: int | None = NO_LIMIT,
    names: Sequence[str] | None = None,
    per: str = "",
    ends_at: dt.datetime | None = None,
    note: str = "",
    edition: int | None = None,
) -> LimitRow:
    """Set one limit; with `ends_at` it holds instead of the lasting row until then.

    `edition` is what the editor saw (0: no row); when somebody else was faster nothing is
    written.
    """
    per = per or _spec(name).usual_per(holder.level)
    check(
        holder=holder, service_class=service_class, name=name, per=per, value=value, names=names,
        ends_at=ends_at,
    )  # fmt: skip
    with books.writing(holder.scope):
        row = _row(holder, service_class, name, per, is_lasting=ends_at is None)
        if edition is not None and edition != (row.edition if row.pk else 0):
            raise ValidationError(CHANGED_MEANWHILE)
        row.value = value
        row.names = None if names is None else sorted(set(names))
        row.ends_at = ends_at
        row.note = note
        row.edition += 1 if row.pk else 0
        row.full_clean(validate_unique=False)
        row.save()
    return row


def clear_limit(
    *, holder: Holder, service_class: str, name: str, per: str = "", edition: int | None = None
) -> bool:
    """Take this holder's rows of the limit away, so that the wider level holds again."""
    spec = _spec(name)
    per = per or spec.usual_per(holder.level)
    with books.writing(holder.scope):
        rows = LimitRow.objects.filter(
            _same(holder), service_class=service_class, name=name, per=per
        )
        if edition is not None and not rows.filter(edition=edition).exists():
            raise ValidationError(CHANGED_MEANWHILE)
        deleted, _ = rows.delete()
    return deleted > 0


def effective(
    *, key: ApiKey | None = None, user: User | None = None, group: Group | None = None,
    service_class: str, now: dt.datetime | None = None,
) -> list[resolve.Effective]:  # fmt: skip
    """Say which limits bind a key, a person or a group, and where each comes from. One query."""
    owner = key.owner if key is not None else user
    group_id = owner.group_id if owner is not None else (group.pk if group else None)
    target = resolve.Target(
        group_id=group_id,
        user_id=owner.pk if owner is not None else None,
        key_pk=key.pk if key is not None else None,
    )
    concerned = Q(level=Level.EVERYONE)
    for column in ("group_id", "user_id", "key_pk"):
        number = getattr(target, column)
        if number is not None:
            concerned |= Q(**{column.replace("_pk", "_id"): number})
    rows = limit_rows(LimitRow.objects.filter(concerned))
    return resolve.explain(resolve.index(rows, now or timezone.now()), target, service_class)


def _spec(name: str) -> LimitSpec:
    try:
        return find(name)
    except LookupError as error:
        raise ValidationError({"name": str(error)}) from error


def check(
    *,
    holder: Holder,
    service_class: str,
    name: str,
    per: str,
    value: int | None,
    names: Iterable[str] | None,
    ends_at: dt.datetime | None,
) -> None:
    """Refuse what cannot bind; a wrong entry must never end as no limit at all."""
    spec = _spec(name)
    if service_class not in ServiceClass.values:
        raise ValidationError({"service_class": "The class is interactive or batch."})
    if service_class not in spec.classes:
        raise ValidationError({"service_class": f"{spec.name} binds {spec.classes[0]} only."})
    if per not in spec.pers:
        raise ValidationError({"per": f"{spec.name} is counted per {' or '.join(spec.pers)}."})
    if holder.level == Level.KEY and per != "key":
        raise ValidationError({"per": "A limit set on a key counts for that key alone."})
    if holder.level == Level.USER and per == "group":
        raise ValidationError({"per": "A user cannot be given a limit of the whole group."})
    if ends_at is not None and ends_at <= timezone.now():
        raise ValidationError({"ends_at": "The end must be in the future."})
    if spec.is_list:
        if value is not None or names is None or not list(names):
            raise ValidationError({"names": "Name at least one model."})
        return
    if names is not None:
        raise ValidationError({"names": f"{spec.name} is a number."})
    check_value(spec, value)


def check_value(spec: LimitSpec, value: int | None) -> None:
    """Refuse numbers out of range, texts, fractions, and no limit where one is needed."""
    if value is None:
        if not spec.may_be_unlimited:
            raise ValidationError({"value": f"{spec.name} needs a number."})
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValidationError({"value": f"{spec.name} needs a whole number."})
    if not spec.smallest <= value <= spec.largest:
        raise ValidationError(
            {"value": f"{spec.name} must be between {spec.smallest} and {spec.largest}."}
        )


def _same(holder: Holder) -> Q:
    return Q(level=holder.level, group=holder.group, user=holder.user, key=holder.key)


def _row(holder: Holder, service_class: str, name: str, per: str, *, is_lasting: bool) -> LimitRow:
    """Return the row to change, or a new one."""
    found = LimitRow.objects.filter(
        _same(holder),
        service_class=service_class,
        name=name,
        per=per,
        ends_at__isnull=is_lasting,
    ).first()
    return found or LimitRow(
        level=holder.level,
        group=holder.group,
        user=holder.user,
        key=holder.key,
        service_class=service_class,
        name=name,
        per=per,
    )
