"""Mails when 80 and 100 % of a limit of a day or month are used, once in each window.

The numbers are those of the books' rollup, a second behind the gate. A person is told of their own
limits, of those of their keys, and of those of the end users behind an application key of theirs,
who have no address here; of a group's limits its owners are told.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction

from quotas import mail, resolve, used
from quotas.limits import CLASSES, LimitSpec
from quotas.models import ApiKey, Group, LimitRow, QuotaMail, User
from quotas.picture import limit_rows
from quotas.snapshots import counters, windows

PERCENTS = (100, 80)  # the larger is told instead of the smaller when both are passed
REMEMBERED = dt.timedelta(days=40)  # longer than the longest window


@dataclass(frozen=True, slots=True)
class Reached:
    """One limit that is used up, or nearly."""

    counter: str
    spec: LimitSpec
    per: str
    service_class: str
    tokens: int
    limit: int
    percent: int


def percent(tokens: int, limit: int) -> int:
    """Return the mark that is reached; 0: none."""
    return next((mark for mark in PERCENTS if limit and tokens * 100 >= limit * mark), 0)


def send(now: dt.datetime) -> int:
    """Mail everybody who wants it and was not told yet; return how many mails were due."""
    if not used.is_needed():
        return 0
    QuotaMail.objects.filter(sent_at__lt=now - REMEMBERED).delete()
    found = used.counters(now)
    rows = resolve.index(limit_rows(LimitRow.objects.all()), now)
    return sum(
        _tell(person, reached, now)
        for person, target, identities in _people(found)
        for reached in _reached(rows, target, identities, found, now)
    )


def _people(found: Iterable[str]) -> Iterator[tuple[User, resolve.Target, dict[str, str]]]:
    """Yield who may be told, whose limits they are, and under which names they are counted."""
    behind: dict[str, set[str]] = defaultdict(set)  # owner -> the end users who used something
    for counter in found:
        _, _, per, identity = counter.split("|", 3)
        if per == "person" and "/" in identity:
            behind[identity.partition("/")[0]].add(identity)
    wanting = User.objects.filter(is_active=True, wants_quota_mail=True).exclude(email="")
    for user in wanting.iterator():
        for identity in (str(user.pk), *sorted(behind[str(user.pk)])):
            yield user, resolve.Target(user.group_id, user.pk), {"person": identity}
    live = ApiKey.objects.filter(
        revoked_at=None, disabled_at=None, owner__in=wanting
    ).select_related("owner")
    for key in live.iterator():
        owner = key.owner
        yield owner, resolve.Target(owner.group_id, owner.pk, key.pk), {"key": key.public_id}
    for group in Group.objects.filter(is_active=True).prefetch_related("owners"):
        for owner in group.owners.all():
            if owner.is_active and owner.wants_quota_mail and owner.email:
                yield owner, resolve.Target(group.pk), {"group": str(group.pk)}


def _reached(
    rows: resolve.Index,
    target: resolve.Target,
    identities: dict[str, str],
    found: dict[str, int],
    now: dt.datetime,
) -> Iterator[Reached]:
    for service_class in CLASSES:
        for item in resolve.explain(rows, target, service_class, used.SPECS_OF_CALENDAR):
            if item.value is None or item.per not in identities:
                continue
            window = windows.window(item.spec.window, now, settings.TIME_ZONE)
            name = counters.field(window.name, service_class, item.per, identities[item.per])
            tokens = found.get(name, 0)
            if mark := percent(tokens, item.value):
                yield Reached(name, item.spec, item.per, service_class, tokens, item.value, mark)


def _tell(person: User, reached: Reached, now: dt.datetime) -> bool:
    with transaction.atomic():
        _, is_new = QuotaMail.objects.get_or_create(
            user=person, counter=reached.counter[:200], percent=reached.percent
        )
        if is_new:
            mail.after_commit(
                subject=f"{reached.percent} % of your {reached.spec.label.lower()} are used",
                text=_text(reached, now),
                to=[person.email],
            )
    return is_new


def _text(reached: Reached, now: dt.datetime) -> str:
    window = windows.window(reached.spec.window, now, settings.TIME_ZONE)
    resets = window.end.astimezone(ZoneInfo(settings.TIME_ZONE))
    whose = {"person": "you", "key": "one of your keys", "group": "your group"}[reached.per]
    name = reached.counter.split("|", 3)[3]
    if reached.per == "person" and "/" in name:
        whose, name = "an end user of your application key", name.partition("/")[2]
    is_named = not (reached.per == "group" or whose == "you")
    return (
        f"{reached.tokens:,} of {reached.limit:,} {reached.spec.unit} are used for {whose}"
        f"{f' ({name})' if is_named else ''}, class {reached.service_class}.\n"
        f"The limit resets at {resets:%Y-%m-%d %H:%M} ({settings.TIME_ZONE}).\n\n"
        f"Your quotas: {settings.PUBLIC_URL}/\n"
        f"Ask for more: {settings.PUBLIC_URL}/quota/\n"
    )
