"""Carries a preview from the page that shows it to the click that applies it.

The changes travel in the form, signed and for an hour, with the editions they were made from; so
nothing is kept between the two and nothing but what was shown can be applied.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from django.core import signing
from django.core.exceptions import ValidationError

from quotas.models import ApiKey, Group, User
from quotas.services.bulk import Change
from quotas.services.limits import Holder

_SALT = "quotas.preview"
_MAX_AGE = dt.timedelta(hours=1)


def dump(changes: Iterable[Change]) -> str:
    """Return the changes as signed text."""
    return signing.dumps([_plain(change) for change in changes], salt=_SALT, compress=True)


def load(text: str) -> list[Change]:
    """Return the changes of a preview; three queries for the holders."""
    try:
        raw = signing.loads(text, salt=_SALT, max_age=_MAX_AGE)
    except signing.BadSignature as error:
        raise ValidationError("This preview is too old; make it again.") from error
    groups = Group.objects.in_bulk([r["id"] for r in raw if r["level"] == "group"])
    users = User.objects.in_bulk([r["id"] for r in raw if r["level"] == "user"])
    keys = ApiKey.objects.in_bulk([r["id"] for r in raw if r["level"] == "key"])
    found = []
    for item in raw:
        holder = Holder(
            group=groups.get(item["id"]) if item["level"] == "group" else None,
            user=users.get(item["id"]) if item["level"] == "user" else None,
            key=keys.get(item["id"]) if item["level"] == "key" else None,
        )
        if holder.level != item["level"]:
            raise ValidationError(f"{item['who']} is not in the books any more.")
        found.append(_change(item, holder))
    return found


def _plain(change: Change) -> dict[str, Any]:
    holder = change.holder
    thing = holder.group or holder.user or holder.key
    return {
        "level": str(holder.level),
        "id": thing.pk if thing else None,
        "who": change.who,
        "class": change.service_class,
        "name": change.name,
        "per": change.per,
        "before": change.before,
        "before_level": change.before_level,
        "after": change.after,
        "cleared": change.is_cleared,
        "until": change.ends_at.isoformat() if change.ends_at else None,
        "note": change.note,
        "edition": change.edition,
    }


def _change(item: dict[str, Any], holder: Holder) -> Change:
    return Change(
        holder=holder,
        who=item["who"],
        service_class=item["class"],
        name=item["name"],
        per=item["per"],
        before=_value(item["before"]),
        before_level=item["before_level"],
        after=_value(item["after"]),
        is_cleared=item["cleared"],
        ends_at=dt.datetime.fromisoformat(item["until"]) if item["until"] else None,
        note=item["note"],
        edition=item["edition"],
    )


def _value(raw: Any) -> int | tuple[str, ...] | None:
    return tuple(raw) if isinstance(raw, list) else raw
