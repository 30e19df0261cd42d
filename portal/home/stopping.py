"""Ending a request that waits or runs: one's own, or for administrators anybody's."""

from __future__ import annotations

from typing import cast

import structlog
from django.contrib import messages
from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.home import mine
from portal.status import source
from portal.status.reading import owner_of
from portal.status.views import live_answer, reading_for
from quotas.models import ApiKey, User
from quotas.snapshots.live import QueuedLive, RunningLive

log = structlog.get_logger(__name__)


@require_POST
@login_required
def stop(request: HttpRequest) -> HttpResponse:
    """Ask the gateway to end a request of mine; it is gone within a second or so."""
    person = cast("User", request.user)
    return _stop(request, person, str(person.pk), "dashboard")


@require_POST
@staff_member_required
def stop_anybodys(request: HttpRequest) -> HttpResponse:
    """End anybody's request; who did it is logged."""
    person = cast("User", request.user)
    if not person.has_perm("quotas.change_apikey"):
        raise PermissionDenied(
            _("Stopping other people's requests needs the right to change keys.")
        )
    return _stop(request, person, None, "everybodys-requests")


def _stop(request: HttpRequest, person: User, user_id: str | None, back: str) -> HttpResponse:
    request_id = request.POST.get("request", "")[:64]
    done = source.here().stop(request_id, user_id)
    if done is None:
        messages.error(
            request, _("The gateway does not answer, so nothing was stopped. Try again.")
        )
    elif done:
        log.warning("request_stopped", by=person.get_username(), stopped=request_id,
                    as_administrator=user_id is None)  # fmt: skip
        messages.success(request, _("Asked to stop it; it is gone within a second."))
    else:
        messages.info(request, _("It had ended already."))
    return redirect(back)


@require_safe
@staff_member_required
def everybody(request: HttpRequest) -> HttpResponse:
    """Show administrators what runs and waits, with names."""
    return render(request, "home/everybody.html", _context(request))


@require_safe
@staff_member_required
def live_everybody(request: HttpRequest) -> HttpResponse:
    """Return that table as it is now."""
    return live_answer(request, "home/everybody_live.html", _context(request))


def _context(request: HttpRequest) -> dict[str, object]:
    live = source.read().live
    tickets: list[QueuedLive | RunningLive] = [*live.running, *live.queued] if live else []
    keys = dict(
        ApiKey.objects.filter(public_id__in={t.key_id for t in tickets}).values_list(
            "public_id", "name"
        )
    )
    owners = {int(owner) for t in tickets if (owner := owner_of(t.user_id)).isdigit()}
    people = {
        str(pk): name
        for pk, name in User.objects.filter(pk__in=owners).values_list("pk", "username")
    }
    return {
        "card": reading_for(request),
        "rows": mine.of_everybody(live, keys),
        "people": people,
        "section": "dashboard",
    }
