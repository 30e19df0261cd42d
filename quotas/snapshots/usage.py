"""One request's usage as it travels from the gateway to the books. Never holds prompt text.

In Redis: stream `{l}:usage`, one entry per record with the single field `r` (JSON of
`UsageRecord`); `{l}:usage:epoch`, a random id kept beside the stream and gone with it;
`{l}:usage:written`, JSON `[epoch, run id, stream id]`, the writer's published position.
A gateway keeps each record until that position has passed it and appends it again otherwise;
(request_id, arrived_at) makes the second copy harmless.

Requests turned away at the door leave no record, only a count: HINCRBY on the hash
`rejected_minute(minute)` with the field `rejected_field(key_id, code)`, and EXPIRE it by
`REJECTED_KEPT_S`. The writer puts each minute into the books once it has passed.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

STREAM = "{l}:usage"
EPOCH = "{l}:usage:epoch"
WRITTEN = "{l}:usage:written"
FIELD = b"r"
REJECTED = "{l}:rejected:"
REJECTED_KEPT_S = 7200


def rejected_minute(now_s: float) -> str:
    """Return the hash that counts the rejections of this minute (Unix time)."""
    return f"{REJECTED}{int(now_s // 60)}"


def rejected_field(key_id: str, code: str) -> str:
    """Return the field of one key and one stable code."""
    return f"{key_id}|{code}"


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One served, failed, aborted, evicted or interrupted request."""

    request_id: str
    arrived_at: str  # ISO 8601, UTC, microseconds; fixed at admission
    key_id: str
    user_id: str
    group_id: str
    service_class: str
    route: str  # /v1/chat/completions …
    model: str  # the pool
    replica_id: str  # "" when it never ran
    outcome: str  # gateway.core.types.Outcome
    status: int  # HTTP status the client got; 0 when it was gone
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int | None = None  # a part of prompt_tokens; None: the engine did not say
    completion_tokens: int = 0
    reasoning_tokens: int | None = None  # a part of completion_tokens
    estimated: bool = False  # counted by us, not told by the engine
    queue_wait_ms: int | None = None
    ttft_ms: int | None = None
    duration_ms: int = 0
    finish_reason: str = ""
    error_code: str = ""
    stream: bool = False
    end_user: str = ""  # behind an application key
    batch_id: str = ""
    client_request_id: str = ""

    def to_json(self) -> bytes:
        """Serialise for the stream."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")).encode()


def record_from_json(text: bytes | str) -> UsageRecord:
    """Read a record; unknown fields of a newer gateway are ignored."""
    raw = json.loads(text)
    names = {f.name for f in dataclasses.fields(UsageRecord)}
    return UsageRecord(**{name: value for name, value in raw.items() if name in names})
