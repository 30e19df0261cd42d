"""Decides what an answer of the gateway means for the line that was sent.

Rule 1: the engine's or gateway's no (4xx) is that line's own error; it is never sent again.
Rule 2: "not now" (429, 503, nobody there) costs the line nothing: the job waits as long as told.
Rule 3: what broke under the line (500, 502, 504, a connection lost) is charged to it; the third
charge fails it, so that a line that kills engines or runners cannot do so for ever.
Rule 4: a key that opens nothing any more pauses the job; its owner decides.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from portal import words

MOST_FAILURES = 3
SHORTEST_WAIT_S = 0.5
DEFAULT_WAIT_S = 2.0
LONGEST_WAIT_S = 3600.0
MESSAGE_SHOWN = 240  # with its mark it fits the book of lines; the error file has all of it
PAUSING_CODES = frozenset(
    {"key_revoked", "key_disabled", "key_expired", "owner_disabled", "group_disabled"}
)
# Answers that were begun with 200 to keep the line alive carry their failure in the body.
STATUS_OF_TYPE = {"rate_limit_error": 429, "service_unavailable_error": 503}


class Kind(Enum):
    """The five things an answer can mean."""

    DONE = "done"
    FAILED = "failed"
    WAIT = "wait"
    BROKE = "broke"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; status 0 means nothing did."""

    status: int
    body: bytes = b""
    request_id: str = ""
    retry_after_s: float | None = None
    reached: bool = True  # False: no connection was made, so nothing can have been started
    trouble: str = ""  # why nothing came back


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the engine counted."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with the line, and with its job."""

    kind: Kind
    status: int
    body: bytes | str = ""  # JSON as it came, or text when it was none
    code: str = ""
    message: str = ""
    wait_s: float = 0.0
    request_id: str = ""
    tokens: Tokens = Tokens()


def judge(answer: Answer) -> Verdict:
    """Return the verdict on one answer."""
    if answer.status == 0:
        return _nothing_came(answer)
    body, raw = _parsed(answer.body)
    error = _error(body)
    status = _real_status(answer.status, error, body)
    code = _storable(error.get("code"))[:500]
    message = words.cut(_storable(error.get("message")), MESSAGE_SHOWN)
    kind = _kind(status, code)
    if kind is Kind.BROKE and not message:
        is_garbage = 200 <= answer.status < 300
        message = "the answer is no JSON object" if is_garbage else f"the engine answered {status}"
    return Verdict(
        kind=kind,
        status=status,
        body=raw,
        code=code,
        message=message,
        wait_s=_wait(answer.retry_after_s) if kind is Kind.WAIT else 0.0,
        request_id=answer.request_id,
        tokens=_tokens(body) if kind is Kind.DONE else Tokens(),
    )


def _nothing_came(answer: Answer) -> Verdict:
    if not answer.reached:
        return Verdict(
            Kind.WAIT,
            0,
            code="gateway_unreachable",
            message="The gateway cannot be reached.",
            wait_s=DEFAULT_WAIT_S,
        )
    return Verdict(
        Kind.BROKE, 0, code="connection_lost", message=words.cut(answer.trouble, MESSAGE_SHOWN)
    )


def _kind(status: int, code: str) -> Kind:
    if 200 <= status < 300:
        return Kind.DONE
    if status == 401 or code in PAUSING_CODES:
        return Kind.PAUSE
    if status in {429, 503, 529}:
        return Kind.WAIT
    return Kind.BROKE if status >= 500 else Kind.FAILED


def _real_status(status: int, error: Mapping[str, Any], body: Any) -> int:
    if 200 <= status < 300 and not isinstance(body, dict):
        return 502  # garbage is no answer, whatever status it came with
    if status != 200 or not error or not isinstance(body, dict):
        return status
    if {"choices", "data", "output"} & body.keys():
        return status
    return STATUS_OF_TYPE.get(str(error.get("type")), 502)


def _wait(retry_after_s: float | None) -> float:
    wait = DEFAULT_WAIT_S if retry_after_s is None else retry_after_s
    return min(max(wait, SHORTEST_WAIT_S), LONGEST_WAIT_S)


def _parsed(raw: bytes) -> tuple[Any, bytes | str]:
    """Return an answer as an object and as what is stored of it."""
    try:
        return orjson.loads(raw), raw.strip()
    except orjson.JSONDecodeError:
        pass
    try:
        body = json.loads(raw)  # takes lone surrogates, which engines do send
    except (ValueError, RecursionError):
        return None, raw.decode(errors="replace")
    return body, json.dumps(body, separators=(",", ":")).encode()


def _error(body: Any) -> Mapping[str, Any]:
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _storable(value: object) -> str:
    """Return a text of an engine as PostgreSQL takes it: no NUL, no half characters."""
    text = str(value or "").replace("\x00", "")
    return text.encode(errors="replace").decode()


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _tokens(body: Any) -> Tokens:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return Tokens()
    given = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    made = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    return Tokens(
        prompt=_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        cached=_count(given.get("cached_tokens")) if isinstance(given, dict) else 0,
        completion=_count(usage.get("completion_tokens", usage.get("output_tokens"))),
        reasoning=_count(made.get("reasoning_tokens")) if isinstance(made, dict) else 0,
    )


def output_line(custom_id: str, verdict: Verdict) -> bytes:
    """Return the line of the output or error file for an answer that came over HTTP."""
    if verdict.status == 0:
        return error_line(custom_id, verdict.code, verdict.message)
    return orjson.dumps(
        {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": custom_id,
            "response": {
                "status_code": verdict.status,
                "request_id": verdict.request_id,
                "body": _one_line(verdict.body),
            },
            "error": None,
        }
    )


def error_line(custom_id: str, code: str, message: str, *, seed: str = "") -> bytes:
    """Return the line of the error file for a request that got no HTTP answer.

    The same seed gives the same bytes, so that a file written twice is one file.
    """
    name = uuid.uuid5(uuid.NAMESPACE_OID, seed) if seed else uuid.uuid4()
    return orjson.dumps(
        {
            "id": f"batch_req_{name.hex}",
            "custom_id": custom_id,
            "response": None,
            "error": {"code": code, "message": message},
        }
    )


def _one_line(body: bytes | str) -> orjson.Fragment | str:
    """Return an answer's JSON byte for byte, unless it was written over several lines."""
    if isinstance(body, str):
        return body
    if b"\n" in body or b"\r" in body:
        body = json.dumps(json.loads(body), separators=(",", ":")).encode()
    return orjson.Fragment(body)
