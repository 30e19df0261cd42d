"""The first page after sign-in: my work on the card, and "try it here"."""

from __future__ import annotations

import time
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from portal.batches.drawing import Gauge, gauge
from portal.batches.models import BatchJob
from portal.home import mine, quota
from portal.keys.forms import KeyForm
from portal.status import source
from portal.status.views import live_answer, reading_for
from quotas import reports
from quotas.models import ApiKey, Pool, User
from quotas.reports import Only, Period
from quotas.snapshots import credentials

TRY_S = 300
JOBS_SHOWN = 5


def _person(request: HttpRequest) -> User:
    return cast("User", request.user)


@require_safe
@login_required
def dashboard(request: HttpRequest) -> HttpResponse:
    """Show what I run, what I wait for, and how much I may still use."""
    person = _person(request)
    keys = [key for key in person.keys.all() if key.state(timezone.now()) == "live"]
    today = reports.total(Period.last_days(1, now=timezone.now()), Only(user_id=person.pk))
    context = {
        **_now(request),
        "section": "dashboard",
        "gauges": quota.card(person, source.read(), timezone.now()),
        "live_keys": keys,
        "try_keys": [key for key in keys if key.service_class == "interactive"],
        "pools": list(Pool.objects.values_list("name", flat=True)),
        "today": today,
        "form": None if keys else KeyForm(cap=2, initial={"name": "my first key"}),
    }
    return render(request, "home/dashboard.html", context)


@require_safe
@login_required
def live_part(request: HttpRequest) -> HttpResponse:
    """Return the drawing of the dashboard as it is now."""
    return live_answer(request, "home/fairway.html", {"card": reading_for(request)})


@require_safe
@login_required
def live_mine(request: HttpRequest) -> HttpResponse:
    """Return my requests as they are now."""
    return live_answer(request, "home/mine.html", _now(request))


@require_safe
@login_required
def live_quota(request: HttpRequest) -> HttpResponse:
    """Return the quota card."""
    gauges = quota.card(_person(request), source.read(), timezone.now())
    return live_answer(request, "home/quota.html", {"gauges": gauges, "now": timezone.now()})


def _now(request: HttpRequest) -> dict[str, Any]:
    person = _person(request)
    names = dict(person.keys.values_list("public_id", "name"))
    return {
        "card": reading_for(request),
        "mine": mine.of_person(str(person.pk), source.read().live, names),
        "jobs": jobs(person),
    }


def jobs(person: User) -> list[tuple[BatchJob, Gauge]]:
    """Return my batch jobs that are not over, with their progress."""
    live = BatchJob.objects.filter(owner=person, state__in=BatchJob.LIVE)[:JOBS_SHOWN]
    return [(job, gauge(job.total, job.completed, job.failed)) for job in live]


@require_POST
@login_required
def try_credential(request: HttpRequest) -> JsonResponse:
    """Lend the page a credential of five minutes under one of the owner's interactive keys.

    Keys are stored as hashes only, so the page cannot use the key itself. The gateway takes the
    credential for one request at a time, under that key's caps and in its usage.
    """
    key = ApiKey.objects.filter(
        owner=_person(request),
        public_id=request.POST.get("key", ""),
        service_class="interactive",
    ).first()
    if key is None or key.state(timezone.now()) != "live":
        return JsonResponse({"error": "Choose a live interactive key of yours."}, status=400)
    ends = time.time() + TRY_S
    credential = credentials.Credential("try", key.digest, ends)
    response = JsonResponse(
        {"credential": credentials.sign(settings.SECRET_KEY, credential), "expires_at": ends}
    )
    response["Cache-Control"] = "no-store"
    return response
