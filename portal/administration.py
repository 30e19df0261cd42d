"""The front page of the admin: what needs a look today."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.db.models import F, Sum
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from portal import words
from portal.status import reading, shapes, source
from quotas.models import ApiKey, CapacityDecision, QuotaRequest, UsageHour, User
from quotas.reports import Period

TOP = 10
EXPIRING = dt.timedelta(days=14)


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Add load, top users, pending requests, expiring keys and capacity decisions."""
    now = timezone.now()
    card = reading.read(source.read(), reader_id="", secret=settings.SECRET_KEY)
    return context | {
        "card": card,
        "load": _load(card),
        "top_users": _top_users(now),
        "pending": _pending(),
        "expiring": _expiring(now),
        "decisions": _decisions(now),
    }


def _load(card: shapes.Reading) -> dict[str, Any]:
    """Return each model's load as a table; what was not heard is unknown."""
    rows = [
        [
            pool.name,
            pool.word,
            "unknown" if pool.slots is None else f"{pool.held_all} of {pool.slots}",
            f"{pool.waiting['interactive']} + {pool.waiting['batch']}"
            if pool.queue_known
            else "unknown",
            words.about(pool.wait_s["interactive"]),
            words.about(pool.wait_s["batch"]),
        ]
        for pool in card.pools
    ]
    headers = ["Model", "State", "Slots held", "Waiting", "New chat in", "New batch in"]
    return {"headers": headers, "rows": rows}


def _top_users(now: dt.datetime) -> dict[str, Any]:
    since = Period.last_days(7, now=now).start
    sums = list(
        UsageHour.objects.filter(hour__gte=since)
        .values("user_id")
        .annotate(
            tokens=Sum(F("prompt_tokens") + F("completion_tokens")),
            asked=Sum("requests"),
            broken=Sum("failed"),
        )
        .order_by("-tokens")[:TOP]
    )
    names = dict(
        User.objects.filter(pk__in=[row["user_id"] for row in sums]).values_list("pk", "username")
    )
    rows = [
        [names.get(row["user_id"], f"former user {row['user_id']}"), words.count(row["tokens"]),
         f"{row['asked']:,}", f"{row['broken']:,}"]
        for row in sums
    ]  # fmt: skip
    return {"headers": ["Person", "Tokens, 7 days", "Requests", "Failed"], "rows": rows}


def _pending() -> list[dict[str, str]]:
    asked = QuotaRequest.objects.filter(state=QuotaRequest.State.OPEN).select_related("user")
    return [
        {
            "text": f"{one.user.username}: {one.name} {one.asked:,} ({one.service_class})",
            "address": reverse("quota-decide", args=[one.pk]),
        }
        for one in asked.order_by("asked_at")[:TOP]
    ]


def _expiring(now: dt.datetime) -> list[dict[str, str]]:
    keys = ApiKey.objects.filter(
        revoked_at=None, disabled_at=None, expires_at__gt=now, expires_at__lt=now + EXPIRING
    ).select_related("owner")
    return [
        {
            "text": f"{key.owner.username}: {key.name} ({key.masked})",
            "when": words.left(key.expires_at, now) if key.expires_at else "",
        }
        for key in keys.order_by("expires_at")[:TOP]
    ]


def _decisions(now: dt.datetime) -> list[CapacityDecision]:
    since = (now - dt.timedelta(days=14)).date()
    return list(CapacityDecision.objects.filter(date__gte=since)[:TOP])
