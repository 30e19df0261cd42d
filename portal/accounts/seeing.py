"""Read-only "see as": an administrator looks at the portal with somebody else's eyes.

Every page seen this way is logged with both names. Nothing can be sent: any method but GET and
HEAD is refused, and so are the admin, the profile's sign-in pages and downloads of data.
"""

from __future__ import annotations

from typing import Any

import structlog
from django.contrib.admin.views.decorators import staff_member_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.http import require_POST

from quotas.models import User

log = structlog.get_logger(__name__)

SESSION = "see_as"
CLOSED = ("/admin/", "/accounts/", "/api/", "/profile/", "/quota/grid/", "/v1/")
END = "/see-as/end/"


class SeeAs(MiddlewareMixin):
    """Puts the other person in the administrator's place, for reading."""

    def process_request(self, request: HttpRequest) -> None:
        pk = request.session.get(SESSION)
        if pk is None or request.path_info == END:
            return
        admin = request.user
        seen = User.objects.filter(pk=pk, is_active=True).first()
        if not (admin.is_authenticated and admin.is_superuser) or seen is None:
            request.session.pop(SESSION, None)
            return
        if request.method not in {"GET", "HEAD"} or request.path_info.startswith(CLOSED):
            raise PermissionDenied(
                f"You are looking as {seen.username}: you can read pages and change nothing."
            )
        log.info("seen_as", admin=admin.get_username(), person=seen.username,
                 path=request.path_info)  # fmt: skip
        request.META["FAIRWAY_SEEN_BY"] = admin.get_username()
        request.user = seen


@require_POST
@staff_member_required
def start(request: HttpRequest, pk: int) -> HttpResponse:
    """Begin to look as a person who has fewer rights."""
    if not request.user.is_superuser:
        raise PermissionDenied("Only superusers may look as somebody else.")
    person: Any = get_object_or_404(User, pk=pk, is_active=True, is_staff=False)
    request.session[SESSION] = person.pk
    log.warning("see_as_started", admin=request.user.get_username(), person=person.username)
    return redirect("dashboard")


@require_POST
def end(request: HttpRequest) -> HttpResponse:
    """Be oneself again."""
    request.session.pop(SESSION, None)
    log.warning("see_as_ended", admin=request.user.get_username())
    return redirect("dashboard")
