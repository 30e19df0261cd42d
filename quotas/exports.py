"""CSV and JSON of reports and requests, streamed line by line and safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quotas.models import UsageEvent
from quotas.reports import Line

# A cell that begins with one of these is run as a formula by spreadsheets.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_LINE_NUMBERS = (
    "requests", "served", "failed", "aborted", "evicted", "estimated", "prompt_tokens",
    "cached_tokens", "completion_tokens", "reasoning_tokens", "tokens", "mean_ttft_ms",
    "mean_queue_wait_ms",
)  # fmt: skip
REQUEST_FIELDS = tuple(field.attname for field in UsageEvent._meta.concrete_fields)


class _Echo:
    def write(self, text: str) -> str:
        return text


def safe(cell: Any) -> Any:
    """Return the cell so that no spreadsheet takes it for a formula; numbers stay numbers."""
    if isinstance(cell, str) and cell.startswith(_FORMULA):
        return "'" + cell
    if isinstance(cell, dt.datetime):
        return cell.isoformat()
    return "" if cell is None else cell


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield CSV text row by row."""
    writer = csv.writer(_Echo())
    yield writer.writerow(header)
    for row in rows:
        yield writer.writerow([safe(cell) for cell in row])


def report_table(
    by: Sequence[str], report: Iterable[Line]
) -> tuple[list[str], Iterator[list[Any]]]:
    """Return header and rows of a report, as the page shows it."""
    header = [*by, *_LINE_NUMBERS]
    return header, (
        [*(line.labels[name] for name in by), *(getattr(line, name) for name in _LINE_NUMBERS)]
        for line in report
    )


def request_table(rows: Iterable[UsageEvent]) -> tuple[list[str], Iterator[list[Any]]]:
    """Return header and rows of single requests."""
    return list(REQUEST_FIELDS), ([getattr(row, name) for name in REQUEST_FIELDS] for row in rows)


def json_lines(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield one JSON array, object by object."""
    opening = "["
    for row in rows:
        yield opening + json.dumps(dict(zip(header, row, strict=True)), default=str)
        opening = ","
    yield "[]" if opening == "[" else "]"
