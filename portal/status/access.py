"""Keeps strangers from the status pages where an installation wants that (STATUS_PUBLIC=0)."""

from __future__ import annotations

import re

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

PAGES = re.compile(r"/(status/|capacity/)")
FOR_PROGRAMS = re.compile(r"/(status\.json|live/|api/v1/status)")


def is_open_to(request: HttpRequest) -> bool:
    """Tell whether the one who asks may see what the card does."""
    user = getattr(request, "user", None)
    return settings.STATUS_PUBLIC or (user is not None and user.is_authenticated)


class MembersOnly(MiddlewareMixin):
    """Sends strangers to the sign-in; programs are told 401."""

    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        path = request.path_info
        if PAGES.match(path) and not is_open_to(request):
            return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
        if FOR_PROGRAMS.match(path) and not is_open_to(request):
            answer: HttpResponse = JsonResponse(
                {"detail": "Sign in to see the status."}, status=401
            )
            answer["WWW-Authenticate"] = "Session"
            return answer
        return None
