"""Turns records of the usage stream into rows; pure, and never trusts what it reads.

One broken record must not stop the books: it is told apart here and set aside by the writer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from quotas.snapshots.usage import UsageRecord, record_from_json

INTERRUPTED = "interrupted"
LARGEST = 2**40  # no real count is near; sums of many stay within a bigint

# Column -> longest text it holds; also the order of COPY. Not in here: numbers and flags.
TEXTS: Mapping[str, int] = MappingProxyType(
    {
        "request_id": 64,
        "key_id": 24,
        "service_class": 12,
        "route": 64,
        "model": 200,
        "replica_id": 24,
        "outcome": 32,
        "finish_reason": 32,
        "error_code": 64,
        "end_user": 200,
        "batch_id": 64,
        "client_request_id": 200,
    }
)
NUMBERS = ("prompt_tokens", "completion_tokens", "duration_ms")
NUMBERS_OR_UNKNOWN = ("cached_tokens", "reasoning_tokens", "queue_wait_ms", "ttft_ms")
FLAGS = ("estimated", "stream")
# Column -> its type, which a binary COPY must be told.
TYPES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(TEXTS, "varchar")
    | dict.fromkeys((*NUMBERS, *NUMBERS_OR_UNKNOWN), "int8")
    | dict.fromkeys(FLAGS, "bool")
    | {"arrived_at": "timestamptz", "user_id": "int8", "group_id": "int8", "status": "int2"}
)
COLUMNS = tuple(TYPES)

Row = tuple[Any, ...]


class BrokenRecord(ValueError):
    """The entry is not a usage record."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """One record as a row, with what decides which of two copies counts."""

    identity: tuple[str, str]  # request id and arrival, as the record spells them
    arrived_at: dt.datetime
    key_id: str
    outcome: str
    row: Row


def parse(raw: bytes) -> Parsed:
    """Read one entry of the stream, or raise `BrokenRecord`."""
    try:
        return _parsed(record_from_json(raw))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise BrokenRecord(str(error)) from error


def latest(parsed: Iterable[Parsed]) -> list[Parsed]:
    """Keep one copy of each request: the first that is not `interrupted`, else the first."""
    kept: dict[tuple[str, str], Parsed] = {}
    for item in parsed:
        same = kept.setdefault(item.identity, item)
        if same.outcome == INTERRUPTED != item.outcome:
            kept[item.identity] = item
    return list(kept.values())


def _parsed(record: UsageRecord) -> Parsed:
    arrived_at = dt.datetime.fromisoformat(record.arrived_at)
    if arrived_at.tzinfo is None or not 2000 <= arrived_at.year < 2200:
        raise BrokenRecord(f"arrived_at {record.arrived_at!r}")
    arrived_at = arrived_at.astimezone(dt.UTC)
    texts = [_text(getattr(record, name), longest) for name, longest in TEXTS.items()]
    if not texts[0] or not record.outcome:
        raise BrokenRecord("a record needs a request id and an outcome")
    row = (
        *texts,
        *(_number(getattr(record, name)) or 0 for name in NUMBERS),
        *(_number(getattr(record, name)) for name in NUMBERS_OR_UNKNOWN),
        *(bool(getattr(record, name)) for name in FLAGS),
        arrived_at,
        _identity(record.user_id) or 0,
        _identity(record.group_id),
        min(_number(record.status) or 0, 999),
    )
    return Parsed((texts[0], record.arrived_at), arrived_at, record.key_id, record.outcome, row)


def _text(value: Any, longest: int) -> str:
    """Return the text as PostgreSQL takes it: no NUL, no lone surrogate, not too long."""
    text = "" if value is None else str(value)
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text[:longest]


def _number(value: Any) -> int | None:
    return None if value is None else max(0, min(int(value), LARGEST))


def _identity(value: str) -> int | None:
    number = int(value.partition("/")[0]) if value else None
    if number is not None and not 0 <= number < 2**63:
        raise BrokenRecord(f"no row can have the number {number}")
    return number
