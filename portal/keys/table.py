"""The rows of the keys page: three queries, however many keys."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass

from django.db.models import F, Q, Sum
from django.utils import timezone

from portal.status.source import Heard
from quotas import resolve
from quotas.models import ApiKey, Level, LimitRow, UsageHour, User
from quotas.picture import limit_rows

WARN_BEFORE = dt.timedelta(days=7)
USAGE_OVER = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key as its owner sees it."""

    key: ApiKey
    state: str
    cap: int | None
    in_flight: int | None  # None: the gateway was not heard
    waiting: int | None
    tokens_30d: int
    expires_soon: bool


def rows(owner: User, heard: Heard) -> list[KeyRow]:
    """Return the owner's keys, newest first; revoked ones too."""
    now = timezone.now()
    keys = list(owner.keys.all())
    caps = key_caps(owner, keys, now)
    tokens = _tokens([key.public_id for key in keys], now)
    live = heard.live
    running = Counter(ticket.key_id for ticket in live.running) if live else None
    queued = Counter(ticket.key_id for ticket in live.queued) if live else None
    return [
        KeyRow(
            key=key,
            state=key.state(now),
            cap=caps.get(key.pk),
            in_flight=None if running is None else running[key.public_id],
            waiting=None if queued is None else queued[key.public_id],
            tokens_30d=tokens.get(key.public_id, 0),
            expires_soon=key.expires_at is not None and key.expires_at - now < WARN_BEFORE,
        )
        for key in keys
    ]


def key_caps(owner: User, keys: list[ApiKey], now: dt.datetime) -> dict[int, int | None]:
    """Return the most requests in flight of each key."""
    concerned = (
        Q(level=Level.EVERYONE)
        | Q(group_id=owner.group_id, level=Level.GROUP)
        | Q(user_id=owner.pk)
        | Q(key__in=keys)
    )
    rows_ = LimitRow.objects.filter(concerned, name="in_flight")
    indexed = resolve.index(limit_rows(rows_), now)
    caps: dict[int, int | None] = {}
    for key in keys:
        target = resolve.Target(group_id=owner.group_id, user_id=owner.pk, key_pk=key.pk)
        for item in resolve.explain(indexed, target, key.service_class):
            if (item.spec.name, item.per) == ("in_flight", "key"):
                caps[key.pk] = item.value
    return caps


def _tokens(key_ids: list[str], now: dt.datetime) -> dict[str, int]:
    hours = UsageHour.objects.filter(key_id__in=key_ids, hour__gte=now - USAGE_OVER)
    sums = hours.values("key_id").annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
    return {row["key_id"]: row["tokens"] for row in sums}
