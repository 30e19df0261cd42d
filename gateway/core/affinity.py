"""Decides which replica a conversation belongs to, before anything is known about load.

Rule 1: a session key is made of things the client sent, always prefixed with the user's id, so
that nobody can steer somebody else's requests.
Rule 2: the order of replicas depends on the session and the replica's name alone. Taking one of n
replicas away moves only its own sessions, and adding one takes an equal part from all.
Rule 3: no I/O, no clock. Bindings, load bounds and waiting for a home replica are the ledger's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

SESSION_HEADER: Final = "x-session-id"
TEXT_LIMIT: Final = 2000  # characters of the first user message that count
DIGEST_BYTES = 16
_UNUSED: Final = blake2b(digest_size=DIGEST_BYTES)  # to copy one takes half as long as to make it


def session_key(user_id: str, headers: dict[str, str], body: dict[str, Any], model: str) -> str:
    """Return the key of the conversation a request belongs to, or "" when it has none.

    The first that is there: the X-Session-ID header (names of headers in lower case), the body's
    `prompt_cache_key`, its `metadata.session_id`, else the model with the system prompt and the
    first user message, which every turn of a conversation repeats.
    """
    named = (
        headers.get(SESSION_HEADER)
        or _text_of(body.get("prompt_cache_key"))
        or _of_metadata(body.get("metadata"))
    )
    if named:
        user, name = _raw(user_id), _raw(named)
        return _digest(b"%d,5,%d,%bnamed%b" % (len(user), len(name), user, name))
    opening = _opening(body)
    if opening is None:
        return ""
    user, name, system, first = _raw(user_id), _raw(model), _raw(opening[0]), _raw(opening[1])
    # The lengths keep ("ab", "c") and ("a", "bc") apart.
    return _digest(
        b"%d,7,%d,%d,%d,%bopening%b%b%b"
        % (len(user), len(name), len(system), len(first), user, name, system, first)
    )


def _of_metadata(metadata: object) -> str:
    return _text_of(metadata.get("session_id")) if isinstance(metadata, dict) else ""


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def _opening(body: dict[str, Any]) -> tuple[str, str] | None:
    """Return what a conversation starts with: system prompt and first user message, or prompt."""
    messages = body.get("messages")
    if messages is None:
        messages = body.get("input")  # /v1/responses
    if isinstance(messages, list):
        return _of_messages(body, messages)
    plain = messages if isinstance(messages, str) else body.get("prompt")
    return ("", plain[:TEXT_LIMIT]) if isinstance(plain, str) and plain else None


def _of_messages(body: dict[str, Any], messages: list[Any]) -> tuple[str, str] | None:
    # /v1/messages and /v1/responses keep the system prompt beside the messages.
    system = _text(body.get("system") or body.get("instructions"))
    for message in messages:
        if not isinstance(message, dict):
            continue
        content = _text(message.get("content"))
        if message.get("role") in ("system", "developer"):
            system = system or content
        elif message.get("role") == "user":
            return (system[:TEXT_LIMIT], content[:TEXT_LIMIT])
    return None


def _text(content: object) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(part for part in parts if isinstance(part, str))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _digest(raw: bytes) -> str:
    taken = _UNUSED.copy()
    taken.update(raw)
    return taken.hexdigest()


def rendezvous(
    session: str, replicas: Iterable[str], weights: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """Return the replicas in the session's own order of preference, best first.

    Score = weight / -ln(h), h being a hash of session and replica as a number between 0 and 1: a
    replica of weight 2 gets twice the sessions of one of weight 1.
    """
    given = weights or {}
    scored = [(_score(session, name, given.get(name, 1.0)), name) for name in set(replicas)]
    return tuple(name for _, name in sorted(scored, reverse=True))


def _score(session: str, replica: str, weight: float) -> float:
    if weight <= 0:
        return 0.0
    raw = f"{len(session)}:{session}{replica}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")
    # 52 bits and a half fit a float exactly, so the result is never 0 and never 1.
    scaled = ((number >> 12) + 0.5) / float(1 << 52)
    return weight / -math.log(scaled)


def load_bound(in_flight_total: int, weight: int, replicas: int, floor: int = 4) -> int:
    """Return the most a replica may hold after taking the request, so that none becomes hot."""
    if replicas < 1:
        return 0
    # ceil(1.25 x (total + w) / n) in whole numbers, as the ledger's script computes it.
    return max(floor, -(-5 * (in_flight_total + weight) // (4 * replicas)))
