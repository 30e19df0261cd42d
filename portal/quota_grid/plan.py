"""A preview in the browser: the changes go there signed, and come back to be applied or not.

Nothing is kept on the server between preview and decision. Each change carries the edition of the
row it was made from, so a preview that became old is refused as a whole.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from django.core import signing
from django.core.exceptions import ValidationError

from quotas.models import ApiKey, Group, User
from quotas.services.bulk import Change
from quotas.services.limits import Holder

SALT = "fairway quota plan"
VALID_S = 3600


def sign(changes: Sequence[Change], by: User) -> str:
    """Return the changes as a text that only this person can bring back, within an hour."""
    return signing.dumps({"by": by.pk, "changes": [_pack(one) for one in changes]}, salt=SALT,
                         compress=True)  # fmt: skip


def load(text: str, by: User) -> list[Change]:
    """Return signed changes, or say that they cannot be taken."""
    try:
        found = signing.loads(text, salt=SALT, max_age=VALID_S)
    except signing.BadSignature:
        raise ValidationError("This preview is too old or damaged; make it again.") from None
    if found["by"] != by.pk:
        raise ValidationError("This preview was made by somebody else; make it again.")
    holders = _holders(found["changes"])
    try:
        return [_unpack(raw, holders) for raw in found["changes"]]
    except KeyError:
        raise ValidationError("Somebody in this preview is gone; make it again.") from None


def _pack(change: Change) -> list[Any]:
    holder = change.holder
    thing = holder.group or holder.user or holder.key
    return [
        holder.level, thing.pk if thing else 0, change.who, change.service_class, change.name,
        change.per, _plain(change.before), change.before_level, _plain(change.after),
        change.is_cleared, change.ends_at.isoformat() if change.ends_at else None, change.note,
        change.edition,
    ]  # fmt: skip


def _plain(value: int | tuple[str, ...] | None) -> int | list[str] | None:
    return list(value) if isinstance(value, tuple) else value


def _value(raw: int | list[str] | None) -> int | tuple[str, ...] | None:
    return tuple(raw) if isinstance(raw, list) else raw


def _holders(packed: list[list[Any]]) -> dict[tuple[str, int], Holder]:
    """Read everybody the changes name: three queries at most."""
    wanted: dict[str, set[int]] = {"group": set(), "user": set(), "key": set()}
    for level, pk, *_rest in packed:
        if level in wanted:
            wanted[level].add(pk)
    found = {("everyone", 0): Holder()}
    found |= {
        ("group", g.pk): Holder(group=g) for g in Group.objects.filter(pk__in=wanted["group"])
    }
    found |= {
        ("user", u.pk): Holder(user=u)
        for u in User.objects.filter(pk__in=wanted["user"]).select_related("group")
    }
    found |= {("key", k.pk): Holder(key=k) for k in ApiKey.objects.filter(pk__in=wanted["key"])}
    return found


def _unpack(raw: list[Any], holders: dict[tuple[str, int], Holder]) -> Change:
    (level, pk, who, service_class, name, per, before, before_level, after, is_cleared, ends_at,
     note, edition) = raw  # fmt: skip
    return Change(
        holder=holders[level, pk],
        who=who,
        service_class=service_class,
        name=name,
        per=per,
        before=_value(before),
        before_level=before_level,
        after=_value(after),
        is_cleared=is_cleared,
        ends_at=dt.datetime.fromisoformat(ends_at) if ends_at else None,
        note=note,
        edition=edition,
    )
