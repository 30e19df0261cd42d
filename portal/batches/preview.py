"""Shows how the results of a batch begin, so that nobody downloads a large file to see whether
its answers are of any use.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from portal import words
from portal.batches.models import BatchItem, BatchJob
from portal.batches.states import ItemState
from portal.files import shelf
from portal.files.models import StoredFile

SHOWN = 5
TEXT_SHOWN = 600
READ_MOST = 256 * 1024  # of a result file; a line that goes on behind it is not shown


@dataclass(frozen=True, slots=True)
class Glimpse:
    """One result: whose it is and how it begins."""

    custom_id: str
    text: str


def of(job: BatchJob) -> list[Glimpse]:
    """Return the first results there are: from the rows while it runs, then from the file."""
    if job.output_file is not None:
        raw = _head(job.output_file)
    else:
        rows = BatchItem.objects.filter(job=job, state=ItemState.DONE, result__isnull=False)
        lines = rows.order_by("line_no").values_list("result__line", flat=True)[:SHOWN]
        raw = [bytes(line) for line in lines]
    return [glimpse for line in raw if (glimpse := _glimpse(line))]


def _head(file: StoredFile) -> list[bytes]:
    """Return the first whole lines of a result file; none when it cannot be read."""
    head = b""
    try:
        for piece in islice(shelf.chunks(file.name), READ_MOST // shelf.CHUNK):
            head += piece
    except OSError:
        return []
    return [line for line in head.split(b"\n")[:-1] if line][:SHOWN]


def _glimpse(line: bytes) -> Glimpse | None:
    try:
        row = orjson.loads(line)
        return Glimpse(str(row["custom_id"]), words.cut(_text(row), TEXT_SHOWN))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _text(row: dict[str, Any]) -> str:
    """Return the answer's own words, or what it is when it has none."""
    body = row["response"]["body"]
    if not isinstance(body, dict):
        return str(body)
    found = _words_of(body)
    return found if found else orjson.dumps(body).decode()


def _words_of(body: dict[str, Any]) -> str:
    """Look where chat, completions, responses and embeddings keep what people read."""
    match body:
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return text
        case {"choices": [{"text": str(text)}, *_]}:
            return text
        case {"output": [*items]}:
            return "".join(_parts(items))
        case {"data": [{"embedding": [*numbers]}, *_]}:
            return f"embedding of {len(numbers):,} numbers"
    return ""


def _parts(items: list[Any]) -> list[str]:
    found = []
    for item in items:
        for part in (item.get("content") if isinstance(item, dict) else None) or ():
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                found.append(part["text"])
    return found
