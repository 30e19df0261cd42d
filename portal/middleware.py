"""What every answer of the portal carries: a request id, browser headers, the person's settings."""

from __future__ import annotations

import contextlib
import io
import re
import secrets
import zoneinfo
from typing import Any

import structlog
from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils import timezone
from django.utils.cache import patch_cache_control
from django.utils.deprecation import MiddlewareMixin
from whitenoise.middleware import WhiteNoiseMiddleware

from portal import errors

# The gateway writes this header over whatever the client sent; the pattern only guards the log.
REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,80}\Z")
PERMISSIONS_POLICY = (
    "camera=(), geolocation=(), microphone=(), payment=(), usb=(), "
    "publickey-credentials-get=(self), publickey-credentials-create=(self), clipboard-write=(self)"
)
RETRY_AFTER_S = {429: 60, 503: 5}


class RequestId(MiddlewareMixin):
    """Names each request, for its log entries, its answer and its error page."""

    def process_request(self, request: HttpRequest) -> None:
        given = request.headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.match(given) else f"req_{secrets.token_hex(12)}"
        request.META["FAIRWAY_REQUEST_ID"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        response["x-request-id"] = request.META["FAIRWAY_REQUEST_ID"]
        return response


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """Serves our few small static files whole: under ASGI an open file is no stream."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        with contextlib.closing(found.file or io.BytesIO()) as file:
            response = HttpResponse(file.read(), status=int(found.status))
        del response["Content-Type"]
        for name, value in found.headers:
            response[name] = value
        return response


class ContentSecurityPolicy(CSPMiddleware):
    """The strict policy everywhere; the admin's theme alone evaluates expressions."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        parts = super().get_policy_parts(request, response, report_only)
        if request.path_info.startswith("/admin/") and not report_only:
            parts.replace = {**settings.ADMIN_POLICY, **(parts.replace or {})}
        return parts


class BrowserHeaders(MiddlewareMixin):
    """Headers that Django does not set itself, and 503 when a store is away."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, errors.STORE_AWAY):
            return errors.unavailable(request, exception)
        return None

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        response.setdefault("Permissions-Policy", PERMISSIONS_POLICY)
        response.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        if response.status_code in RETRY_AFTER_S:
            response.setdefault("Retry-After", str(RETRY_AFTER_S[response.status_code]))
        if "Cache-Control" not in response:
            # A page may hold what only its reader should see; pages for everybody say so.
            patch_cache_control(response, private=True, no_store=True)
        return response


class Compression(GZipMiddleware):
    """Compresses pages; files and batches stream through as they are."""

    def process_response(self, request: HttpRequest, response: Any) -> Any:
        if request.path_info.startswith("/v1/"):
            return response
        return super().process_response(request, response)


class PersonalSettings(MiddlewareMixin):
    """Times in the person's own zone, else in the zone of quota days."""

    def process_request(self, request: HttpRequest) -> None:
        name = getattr(request.user, "time_zone", "") if request.user.is_authenticated else ""
        try:
            timezone.activate(zoneinfo.ZoneInfo(name or settings.TIME_ZONE))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            timezone.activate(zoneinfo.ZoneInfo(settings.TIME_ZONE))
