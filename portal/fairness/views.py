"""How evenly the card was shared: in full for administrators, one's own place for everybody."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from quotas import fairness
from quotas.fairness import Fairness, OwnPlace
from quotas.models import User
from quotas.reports import Period

TABS = {"1": "Today", "7": "7 days", "30": "30 days"}
CLASSES = ("interactive", "batch")
KEPT_S = 300  # the report reads single requests: seconds of work, the same for everybody
PAIRS = 20


def report(days: int) -> Fairness:
    """Return the report of the last days, at most five minutes old."""
    name = f"fairness:{days}"
    found = cast("Fairness | None", cache.get(name))
    if found is None:
        found = fairness.of_period(Period.last_days(days, now=timezone.now()))
        cache.set(name, found, KEPT_S)
    return found


def own(found: Fairness, person: User) -> dict[str, OwnPlace | None]:
    """Return one person's place by class."""
    return {name: fairness.own_place(found, person.pk, name) for name in CLASSES}


@require_safe
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """Show the report; as JSON with ?format=json."""
    person = cast("User", request.user)
    days = request.GET.get("days", "7")
    days = days if days in TABS else "7"
    found = report(int(days))
    places = own(found, person)
    if request.GET.get("format") == "json":
        return JsonResponse(_as_json(found, places, in_full=person.is_staff))
    context: dict[str, Any] = {
        "section": "usage",
        "days": days,
        "tabs": TABS,
        "found": found,
        "own": places,
        "parts": found.parts if person.is_staff else (),
        "behind": found.behind[:PAIRS] if person.is_staff else (),
        "evenness": [(name, found.jain_slots[name], found.jain_tokens[name])
                     for name in found.jain_slots],
    }  # fmt: skip
    return render(request, "fairness/page.html", context)


def _as_json(
    found: Fairness, places: dict[str, OwnPlace | None], *, in_full: bool
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "own": {name: asdict(place) if place else None for name, place in places.items()},
        "jain_slots": found.jain_slots,
        "jain_tokens": found.jain_tokens,
        "requests": found.requests,
        "cut": found.cut,
    }
    return found.as_json() | told if in_full else told
