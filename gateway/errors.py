"""What can go wrong with a request, whose fault it is, and how the client is told.

GatewayError
  BadRequest 400        the body or an argument is wrong
  NotAuthenticated 401  no key, not a key, not a live key
  Forbidden 403         the key may not do this
  NotFound 404          no such path or model
  MethodNotAllowed 405
  Stopped 409           its owner or an administrator stopped it in the portal
  TooLarge 413
  EngineRefused 4xx     the engine would not take the request: its own words, in our shape
  Rejected 429          turned away at the door; the request never waited
  InsufficientQuota 429 a day's or month's worth is used up
  Evicted 429           left the queue unserved
  EngineFailed 502      the engine or the way to it broke
  Unavailable 503       a part of the installation is away; try again
  EngineTimeout 504

ClientGone is no reply: nobody is there to read one.
"""

from __future__ import annotations

import math
import time
from typing import Any

import orjson

from gateway.core.types import Outcome
from gateway.ledger.interface import Refused

LONGEST_RETRY_AFTER_S = 60  # older clients ignore longer ones and come back at once


class ClientGone(Exception):
    """The client left; only the record is still to be written."""


class GatewayError(Exception):
    """Base of everything a client can be told."""

    status = 500
    type = "server_error"
    code: str = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        details: dict[str, Any] | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers
        self.details = details or {}
        self.outcome = outcome  # None: turned away at the door, no record


class BadRequest(GatewayError):
    status, type, code = 400, "invalid_request_error", "invalid_request"


class NotAuthenticated(GatewayError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(GatewayError):
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(GatewayError):
    status, type, code = 404, "invalid_request_error", "not_found"


class MethodNotAllowed(GatewayError):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class Stopped(GatewayError):
    status, type, code = 409, "request_stopped_error", "stopped"


class TooLarge(GatewayError):
    status, type, code = 413, "invalid_request_error", "body_too_large"


class Rejected(GatewayError):
    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class InsufficientQuota(Rejected):
    """The day's or month's worth is used up: waiting a little does not help."""

    type, code = "insufficient_quota", "insufficient_quota"


class Evicted(Rejected):
    code = "queue_timeout"


class EngineFailed(GatewayError):
    status, type, code = 502, "server_error", "engine_failed"


class Unavailable(GatewayError):
    status, type, code = 503, "service_unavailable_error", "unavailable"


class EngineTimeout(GatewayError):
    status, type, code = 504, "server_error", "engine_timeout"


class EngineRefused(GatewayError):
    """A 4xx of the engine in our shape; spellings of types and codes differ between engines."""

    type, code = "invalid_request_error", "engine_refused"

    def __init__(self, status: int, message: str, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.status = status


_REFUSALS: dict[str, tuple[type[GatewayError], str]] = {
    "queue_full_key": (Rejected, "This key has as many requests waiting as it may."),
    "queue_full_user": (Rejected, "You have as many requests waiting as you may."),
    "queue_full": (Rejected, "The queue for this model is full."),
    "queue_timeout": (Evicted, "No slot became free in time."),
    "no_replica": (Unavailable, "No engine for this model is up."),
    "revoked": (NotAuthenticated, "This key was revoked."),
    "shutting_down": (Unavailable, "This gateway is being restarted; try again."),
    "scheduler_unavailable": (Unavailable, "The scheduler is away for a moment; try again."),
    "directory_unavailable": (Unavailable, "Keys cannot be checked at this moment; try again."),
    "weight_too_large": (BadRequest, "The request asks for more sequences than may ever run."),
}


def from_refused(refused: Refused) -> GatewayError:
    """Return the answer to what the ledger said."""
    kind, message = _REFUSALS.get(refused.code, (Rejected, "The request was refused."))
    text = str(refused)
    if refused.limit is not None and refused.code == "weight_too_large":
        message = f"The request asks for more sequences than may ever run; at most {refused.limit}."
    retry_after_s = None if refused.retry_after_ms is None else refused.retry_after_ms / 1000
    details: dict[str, Any] = {}
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if refused.place:
        details["place"] = refused.place
        headers = ((b"x-fairway-place", refused.place.encode("latin-1", "replace")),)
    return kind(
        message if text == refused.code else text,
        code=refused.code,
        retry_after_s=retry_after_s,
        headers=headers,
        details=details,
        outcome=refused.outcome,
    )


def shutting_down() -> Unavailable:
    """Return what a client is told that comes while this process ends."""
    return Unavailable(
        "This gateway is being restarted; try again.", code="shutting_down", retry_after_s=1
    )


def measuring(until: float) -> Unavailable:
    """Return what a client is told while the only card of its model is being measured."""
    return Unavailable(
        "The capacity of this model's card is being measured; it is back soon.",
        code="measuring",
        retry_after_s=max(1.0, until - time.time()),
        outcome=Outcome.EVICTED_NO_REPLICA,
    )


def wait_exceeds(wait_s: float, patience_s: float) -> Rejected:
    """Return what a client is told that would give up before its turn."""
    return Rejected(
        f"The expected wait is {wait_s:.0f} s and this client gives up after "
        f"{patience_s:.0f} s. Send it as a job to /v1/batches, or raise the timeout.",
        code="wait_exceeds_timeout",
        retry_after_s=wait_s,
    )


def stopped() -> Stopped:
    """Return what a client is told whose request was stopped; clients must not send it again."""
    return Stopped(
        "This request was stopped in the portal, by its owner or an administrator.",
        headers=((b"x-should-retry", b"false"),),
    )


def body_of(error: GatewayError, *, messages_shape: bool = False) -> bytes:
    """Write the error in OpenAI's shape, or in that of /v1/messages."""
    inner: dict[str, Any] = {
        "message": str(error),
        "type": error.type,
        "param": error.param,
        "code": error.code,
        **error.details,
    }
    if error.retry_after_s is not None:
        inner["retry_after_s"] = max(1, math.ceil(error.retry_after_s))
    if messages_shape:
        return orjson.dumps({"type": "error", "error": inner})
    return orjson.dumps({"error": inner})


def headers_of(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """Return the headers that go with it; every 429 and 503 says when to come back.

    Longer waits than old clients understand go out honestly with x-should-retry: false.
    """
    headers = [(b"content-type", b"application/json"), *error.headers]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.status in (429, 503):
        seconds = max(1, math.ceil(5 if error.retry_after_s is None else error.retry_after_s))
        headers.append((b"retry-after", str(seconds).encode()))
        if seconds > LONGEST_RETRY_AFTER_S:
            headers.append((b"x-should-retry", b"false"))
    return headers
