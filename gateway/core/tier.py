"""Says in an answer which service tier a request got, where its client asked for one.

Rule 1: only answers to requests that named a tier are touched; all others pass as they came.
Rule 2: what is not understood passes as it came. No I/O.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.core.events import data_of
from gateway.core.types import ServiceClass

#: The tier that each class is called by.
TIER_OF = {ServiceClass.BATCH: "flex", ServiceClass.INTERACTIVE: "default"}


def in_body(body: bytes, tier: str) -> bytes:
    """Return a plain answer that names the tier."""
    answer = _object(body)
    if answer is None:
        return body
    answer["service_tier"] = tier
    return orjson.dumps(answer)


def in_event(event: bytes, tier: str) -> bytes:
    """Return an event that names the tier: a chunk of a chat, or one that holds a response."""
    data = data_of(event)
    chunk = None if data is None else _object(data)
    if chunk is None or data is None:
        return event
    response = chunk.get("response")
    if isinstance(response, dict):
        response["service_tier"] = tier
    elif "choices" in chunk:
        chunk["service_tier"] = tier
    else:
        return event
    before, _, after = event.partition(data)
    return before + orjson.dumps(chunk) + after if before or after else event


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
