"""Request history: newest first, page by page by a cursor, with filters."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from quotas.models import UsageEvent

PAGE = 50
FILTERS = {"key": "key_id", "model": "model", "class": "service_class", "outcome": "outcome"}
STOPPED = "stopped"  # the code of a request that was ended from the portal
OUTCOMES = {
    "served": gettext_noop("answered"),
    "failed": gettext_noop("the engine failed"),
    "aborted": gettext_noop("stopped by the one who asked"),
    "interrupted": gettext_noop("cut off when a part of the gateway stopped"),
    "evicted_timed_out": gettext_noop("waited too long for a slot"),
    "evicted_no_replica": gettext_noop("no engine of the model was up"),
    "evicted_client_gone": gettext_noop("the program left while it waited"),
    "evicted_revoked": gettext_noop("its key was revoked while it waited"),
    "evicted_shutting_down": gettext_noop("the gateway was stopping"),
}


def outcome_words(event: UsageEvent) -> str:
    """Return how a request ended, in the words of the pages."""
    if event.error_code == STOPPED:
        return _("stopped in the portal")
    return _(OUTCOMES[event.outcome]) if event.outcome in OUTCOMES else event.outcome


@dataclass(frozen=True, slots=True)
class Page:
    """Some requests and where to go on."""

    rows: tuple[UsageEvent, ...]
    after: str  # cursor of the next, older page; "" at the end


def page(user_id: int, filters: Mapping[str, str], after: str, size: int = PAGE) -> Page:
    """Return the person's requests older than the cursor."""
    chosen = {FILTERS[name]: value for name, value in filters.items() if name in FILTERS and value}
    events = UsageEvent.objects.filter(user_id=user_id, **chosen)
    place = decode(after)
    if place is not None:
        at, request_id = place
        events = events.filter(Q(arrived_at__lt=at) | Q(arrived_at=at, request_id__lt=request_id))
    found = list(events.order_by("-arrived_at", "-request_id")[: size + 1])
    last = found[size - 1] if len(found) > size else None
    return Page(tuple(found[:size]), encode(last.arrived_at, last.request_id) if last else "")


def encode(at: dt.datetime, request_id: str) -> str:
    """Return the cursor that stands after one request."""
    return base64.urlsafe_b64encode(f"{at.isoformat()} {request_id}".encode()).decode()


def decode(cursor: str) -> tuple[dt.datetime, str] | None:
    """Return the place of a cursor; a broken one starts at the newest request."""
    try:
        at, _, request_id = base64.urlsafe_b64decode(cursor).decode().partition(" ")
        moment = dt.datetime.fromisoformat(at)
    except (binascii.Error, ValueError, UnicodeDecodeError):
        return None
    return (moment, request_id) if moment.tzinfo and "\0" not in request_id else None
