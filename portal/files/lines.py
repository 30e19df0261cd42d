"""Reads a batch input chunk by chunk and says of each line what it is or what is wrong with it.

Rule 1: no I/O; memory is one line, the index of the lines, and at most `MOST_PROBLEMS` problems.
Rule 2: what depends only on the file is decided here, at upload, with the line's number. What
depends on key, model or limits is decided when a batch is created.
Rule 3: a byte order mark, CRLF and blank lines are nobody's mistake; they are skipped, and line
numbers stay those an editor shows.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import orjson

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MOST_PROBLEMS = 100
CUSTOM_ID_LENGTH = 256
MODEL_LENGTH = 200
PREFIX_LENGTH = 512
OUTPUT_TOKENS_MOST = 2**31 - 1
BOM = b"\xef\xbb\xbf"
# Where each endpoint's prompt lies, and under which names its longest answer may be given.
PROMPTS = ("messages", "prompt", "input", "instructions")
OUTPUTS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Limits:
    """The published bounds of a batch input."""

    lines: int
    size: int
    line_size: int


@dataclass(frozen=True, slots=True)
class Line:
    """One good line."""

    line_no: int
    offset: int
    length: int
    custom_id: str
    prompt_tokens: int
    output_tokens: int | None
    prefix: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One line that cannot run; `line` is None when it is about the file."""

    code: str
    line: int | None
    message: str
    param: str | None = None


class Wrong(Exception):
    """Raised inside the check of one line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


@dataclass(slots=True)
class LineReader:
    """Takes chunks, keeps an index of the good lines and a list of the problems."""

    limits: Limits
    lines: list[Line] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    endpoint: str = ""
    model: str = ""
    size: int = 0
    _first_line: int = 0
    _line_no: int = 0
    _offset: int = 0  # of the first byte of the line being collected
    _rest: bytearray = field(default_factory=bytearray)
    _skipping: bool = False  # inside a line that is too long
    _seen: dict[bytes, int] = field(default_factory=dict)

    def feed(self, chunk: bytes) -> None:
        """Read on."""
        self.size += len(chunk)
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._collect(chunk[start:end])
            self._end_of_line(newline=1)
            start = end + 1
        self._collect(chunk[start:])

    def finish(self) -> None:
        """Read the last line, which may lack its newline, and judge the file as a whole."""
        if self._rest or self._skipping:
            self._end_of_line(newline=0)
        if not self.lines and not self.problem_count:
            self._add(Problem("empty_file", None, "The file holds no lines.", "file"))

    def _collect(self, part: bytes) -> None:
        if self._skipping:
            self._offset += len(part)
            return
        self._rest += part
        if len(self._rest) > self.limits.line_size + len(BOM):
            self._skipping = True
            self._offset += len(self._rest)
            self._rest.clear()

    def _end_of_line(self, *, newline: int) -> None:
        self._line_no += 1
        if self._skipping:
            self._skipping = False
            self._offset += newline
            most = self.limits.line_size
            self._add(Problem("line_too_long", self._line_no, f"longer than {most:,} bytes"))
            return
        raw, offset = bytes(self._rest), self._offset
        self._rest.clear()
        self._offset += len(raw) + newline
        if self._line_no == 1 and raw.startswith(BOM):
            raw, offset = raw[len(BOM) :], offset + len(BOM)
        if not raw.strip():
            return
        try:
            self._accept(raw, offset)
        except Wrong as wrong:
            self._add(Problem(wrong.code, self._line_no, str(wrong), wrong.param))

    def _accept(self, raw: bytes, offset: int) -> None:
        if len(self.lines) >= self.limits.lines:
            raise Wrong("too_many_tasks", f"more than {self.limits.lines:,} lines")
        row = _parsed(raw)
        custom_id = _custom_id(row)
        body = self._body(row)
        name = unicodedata.normalize("NFC", custom_id).encode()
        first = self._seen.setdefault(hashlib.blake2b(name, digest_size=16).digest(), self._line_no)
        if first != self._line_no:
            raise Wrong(
                "duplicate_custom_id",
                f"custom_id {custom_id[:64]!r} was used in line {first}",
                "custom_id",
            )
        text, size = _prompt(body)
        self.lines.append(
            Line(
                line_no=self._line_no,
                offset=offset,
                length=len(raw),
                custom_id=custom_id,
                prompt_tokens=size // 4 + 1,
                output_tokens=_output_tokens(body),
                prefix=_prefix(text),
            )
        )

    def _body(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the line's request; all lines share one endpoint and one model."""
        if row.get("method") != "POST":
            raise Wrong("invalid_method", "method must be POST", "method")
        url, body = row.get("url"), row.get("body")
        if url not in ENDPOINTS:
            raise Wrong("invalid_url", f"url must be one of {', '.join(ENDPOINTS)}", "url")
        if not isinstance(body, dict):
            raise Wrong("invalid_body", "body must be an object", "body")
        model = body.get("model")
        if not isinstance(model, str) or not 0 < len(model) <= MODEL_LENGTH or "\x00" in model:
            raise Wrong("missing_model", "body.model must name a model", "body.model")
        if body.get("stream"):
            raise Wrong("stream_not_supported", "stream has no place in a batch", "body.stream")
        if not self._first_line:
            self.endpoint, self.model, self._first_line = str(url), model, self._line_no
        if url != self.endpoint:
            raise Wrong(
                "url_mismatch",
                f"url differs from {self.endpoint} in line {self._first_line}",
                "url",
            )
        if model != self.model:
            raise Wrong(
                "model_mismatch",
                f"model differs from {self.model!r} in line {self._first_line}",
                "body.model",
            )
        return body

    def _add(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        try:
            raw.decode()
        except UnicodeDecodeError as bad:
            raise Wrong("invalid_utf8", f"not UTF-8 at byte {bad.start + 1}") from None
        raise Wrong("invalid_json_line", f"not JSON: {str(error)[:120]}") from None
    if not isinstance(row, dict):
        raise Wrong("invalid_json_line", "not a JSON object")
    return row


def _custom_id(row: dict[str, Any]) -> str:
    custom_id = row.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id.strip():
        raise Wrong("missing_custom_id", "custom_id must be a text that is not empty", "custom_id")
    if len(custom_id) > CUSTOM_ID_LENGTH:
        raise Wrong(
            "invalid_custom_id", f"custom_id is longer than {CUSTOM_ID_LENGTH}", "custom_id"
        )
    if "\x00" in custom_id:
        raise Wrong("invalid_custom_id", "custom_id holds a NUL character", "custom_id")
    return custom_id


def _output_tokens(body: dict[str, Any]) -> int | None:
    for name in OUTPUTS:
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return min(max(value, 0), OUTPUT_TOKENS_MOST)
    return None


def _prompt(body: dict[str, Any]) -> tuple[str, int]:
    """Return how the prompt begins and how many bytes it has; tools and schemas do not count."""
    parts = [body[name] for name in PROMPTS if name in body]
    raw = orjson.dumps(parts)
    return raw[:PREFIX_LENGTH].decode(errors="replace"), len(raw)


def _prefix(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
