"""One error tree in OpenAI's shape; `handle` turns every error of a view into a reply.

ApiError
  BadRequest 400 · Unauthorized 401 · NotFound 404 · Conflicting 422 · TooLarge 413
  OutOfSpace 507 · TryLater 503

409 is never used: the official client repeats it on its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions
from rest_framework.response import Response

log = logging.getLogger(__name__)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
    500: "internal_error",
    503: "service_unavailable",
    507: "storage_full",
}


class ApiError(Exception):
    """Something a client is told in the shape it understands."""

    status = 500
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        param: str | None = None,
        details: Iterable[Mapping[str, object]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.param = param
        self.details = list(details)


class BadRequest(ApiError):
    """The request itself is wrong."""

    status = 400
    code = "invalid_request"


class Unauthorized(ApiError):
    """No key, or one that opens nothing."""

    status = 401
    code = "invalid_api_key"


class NotFound(ApiError):
    """No such thing, or another person's: the two look the same."""

    status = 404
    code = "not_found"


class TooLarge(ApiError):
    """More bytes than the published limit."""

    status = 413
    code = "request_too_large"


class Conflicting(ApiError):
    """The same Idempotency-Key with another body."""

    status = 422
    code = "idempotency_key_reused"


class TryLater(ApiError):
    """A store is away; the same request will work soon."""

    status = 503
    code = "service_unavailable"


class OutOfSpace(ApiError):
    """No room is left for the file; nothing of it was kept."""

    status = 507
    code = "storage_full"


def envelope(
    status: int,
    message: str,
    *,
    code: str = "",
    param: str | None = None,
    details: Iterable[Mapping[str, object]] = (),
) -> dict[str, Any]:
    """Return the body of an error; all four keys are always there."""
    error: dict[str, Any] = {
        "message": message,
        "type": TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
        "param": param,
        "code": code or CODES.get(status, "error"),
    }
    listed = list(details)
    if listed:
        error["errors"] = {"object": "list", "data": listed}
    return {"error": error}


def _as_api_error(error: Exception) -> ApiError | None:
    """Translate the errors of Django and its database that have an honest answer."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Http404):
        return NotFound("No such object.")
    if isinstance(error, RequestDataTooBig):
        return TooLarge("The request is larger than this server takes.")
    if isinstance(error, OperationalError | InterfaceError):
        return TryLater("The database cannot be reached at the moment; try again.")
    if isinstance(error, SuspiciousOperation | PermissionDenied | UnreadablePostError):
        return BadRequest("The request could not be read.")
    return None


def handle(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Answer any error of a view with the envelope; unknown ones are logged and a plain 500."""
    known = _as_api_error(error)
    headers: dict[str, str] = {}
    if known is not None:
        status = known.status
        body = envelope(
            status, str(known), code=known.code, param=known.param, details=known.details
        )
    elif isinstance(error, exceptions.APIException):
        status = error.status_code
        body = envelope(status, _plain(error.detail))
        wait = getattr(error, "wait", None)
        if wait:
            headers["Retry-After"] = str(max(1, int(wait)))
    else:
        log.exception("unexpected error in %s", type(context.get("view")).__name__)
        status = 500
        body = envelope(500, "Something went wrong on our side; the error has been logged.")
    if status in {429, 503}:
        headers.setdefault("Retry-After", "5")
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(body, status=status, headers=headers)


def _plain(detail: object) -> str:
    """Return DRF's detail, which may nest, as one sentence."""
    if isinstance(detail, dict):
        return "; ".join(f"{name}: {_plain(value)}" for name, value in detail.items())
    if isinstance(detail, list):
        return " ".join(_plain(value) for value in detail)
    return str(detail)
