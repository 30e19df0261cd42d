"""How evenly the card was shared: in full for administrators, one's own place for everybody."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from portal.fairness.kept import of_days
from quotas import fairness
from quotas.fairness import Fairness, OwnPlace
from quotas.models import User

TABS = {"1": "Today", "7": "7 days", "30": "30 days"}
CLASSES = ("interactive", "batch")
PEOPLE = 50
PAIRS = 20


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
    kept = of_days(int(days))
    found = kept.report
    places = own(found, person)
    if request.GET.get("format") == "json":
        return JsonResponse(_as_json(found, places, in_full=person.is_staff))
    context: dict[str, Any] = {
        "section": "usage",
        "days": days,
        "tabs": TABS,
        "found": found,
        "own": places,
        "made_at": kept.made_at,
        "parts": found.parts[:PEOPLE] if person.is_staff else (),
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
