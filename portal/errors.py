"""Error answers: a page in plain words for people, the OpenAI shape for programs under /v1."""

from __future__ import annotations

import sys

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from redis.exceptions import RedisError

from portal import context, words

log = structlog.get_logger(__name__)

STORE_AWAY = (OperationalError, InterfaceError, RedisError)
PROGRAM_TEXTS = {
    400: ("invalid_request_error", "bad_request", "The request could not be read."),
    403: ("permission_error", "forbidden", "This key may not do that."),
    404: ("invalid_request_error", "not_found", "There is nothing at this address."),
    500: ("server_error", "internal_error", "Something broke on our side."),
    503: ("server_error", "store_unavailable", "A store does not answer. Try again soon."),
}


def answer(
    request: HttpRequest, status: int, extra: dict[str, object] | None = None
) -> HttpResponse:
    """Return the page or the JSON of an error status."""
    if request.path_info.startswith(("/v1/", "/api/")):
        kind, code, message = PROGRAM_TEXTS[status]
        if request.path_info.startswith("/api/"):
            body: dict[str, object] = {
                "type": "client_error" if status < 500 else "server_error",
                "errors": [{"code": code, "detail": message, "attr": None}],
            }
        else:
            body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        return JsonResponse(body, status=status)
    # The page must come out even when the database is what failed: nothing here reads it.
    page = render_to_string(f"{status}.html", context.error_page(request) | (extra or {}))
    return HttpResponse(page, status=status)


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer 400."""
    return answer(request, 400)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer 403, with the missing right when the code that refused named it."""
    text = str(exception) if exception else ""
    return answer(request, 403, {"reason": words.cut(text, 300)})


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer 403 to a form that did not come from our own page."""
    log.warning("form_refused", reason=reason)
    return answer(request, 403, {"form": True})


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer 404."""
    return answer(request, 404)


def broken(request: HttpRequest) -> HttpResponse:
    """Answer 500; Django has already logged the traceback under the same request id.

    A store that is away may be noticed before any view runs, when the session is read: that is
    503 all the same.
    """
    cause = sys.exc_info()[1]
    if isinstance(cause, STORE_AWAY):
        return unavailable(request, cause)
    return answer(request, 500)


def unavailable(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 503 while PostgreSQL or Redis is away."""
    log.error("store_unavailable", error=type(exception).__name__, detail=str(exception)[:300])
    return answer(request, 503)
