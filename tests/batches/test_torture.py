"""Hostile files end in acceptance with the true count or in refusal with the line, never stuck."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from portal.files.lines import Limits, LineReader
from tests.batches.helpers import line

COUNT = 300
LIMITS = Limits(lines=40, size=10**7, line_size=16_384)

Row = tuple[bytes, str]  # the bytes of a line, and the code it is refused with; "" is accepted


def good(number: int) -> Row:
    """Return a line that may run."""
    return json.dumps(line(f"ok-{number}")).encode(), ""


def _with(number: int, **changes: object) -> bytes:
    return json.dumps({**line(f"x-{number}"), **changes}).encode()


def _body(number: int, **changes: object) -> bytes:
    row = line(f"x-{number}")
    row["body"] = {**row["body"], **changes}
    return json.dumps(row).encode()


HOSTILE: tuple[tuple[str, Callable[[int], bytes]], ...] = (
    ("", lambda n: b""),
    ("", lambda n: b"   \t"),
    ("", lambda n: json.dumps(line(f"ünï-{n}-😀"), ensure_ascii=False).encode()),
    ("", lambda n: _with(n, extra={"nested": [1, 2, {"a": None}]})),
    ("", lambda n: b"  " + _with(n) + b"  "),
    ("invalid_json_line", lambda n: b"[1]"),
    ("invalid_json_line", lambda n: b'"text"'),
    ("invalid_json_line", lambda n: b"null"),
    ("invalid_json_line", lambda n: b"1e999"),
    ("invalid_json_line", lambda n: b"{" * 2000),
    ("invalid_json_line", lambda n: b'{"a":' * 2000 + b"1" + b"}" * 2000),
    ("invalid_json_line", lambda n: _with(n)[:-1]),
    ("invalid_json_line", lambda n: _with(n) + _with(n)),
    ("invalid_json_line", lambda n: _with(n).replace(b"POST", b"\\ud83d")),
    ("invalid_json_line", lambda n: b"\x00"),
    ("invalid_utf8", lambda n: _with(n).replace(b"POST", b"\xff\xfe")),
    ("invalid_utf8", lambda n: _with(n).decode().encode("utf-16")[:301].replace(b"\n", b"x")),
    ("missing_custom_id", lambda n: _with(n, custom_id="")),
    ("missing_custom_id", lambda n: _with(n, custom_id=7)),
    ("missing_custom_id", lambda n: _with(n, custom_id=None)),
    ("invalid_custom_id", lambda n: _with(n, custom_id="k" * 300)),
    ("invalid_custom_id", lambda n: _with(n, custom_id=f"nul\0{n}")),
    ("invalid_method", lambda n: _with(n, method="GET")),
    ("invalid_method", lambda n: _with(n, method=["POST"])),
    ("invalid_url", lambda n: _with(n, url="/v1/moderations")),
    ("invalid_url", lambda n: _with(n, url={"a": 1})),
    ("url_mismatch", lambda n: _with(n, url="/v1/embeddings")),
    ("invalid_body", lambda n: _with(n, body="s")),
    ("invalid_body", lambda n: _with(n, body=[])),
    ("missing_model", lambda n: _body(n, model=None)),
    ("missing_model", lambda n: _body(n, model={"x": 1})),
    ("model_mismatch", lambda n: _body(n, model="another")),
    ("stream_not_supported", lambda n: _body(n, stream=True)),
    ("line_too_long", lambda n: _body(n, messages="x" * 20_000)),
    ("duplicate_custom_id", lambda n: _with(n, custom_id="first")),
    ("duplicate_custom_id", lambda n: _with(n, custom_id="caf\u00e9")),
)


def generated(seed: int) -> list[Row]:
    """Return a file of good and hostile lines; the same seed is the same file."""
    dice = random.Random(seed)
    rows: list[Row] = [
        (json.dumps(line("first")).encode(), ""),
        (json.dumps(line("cafe\u0301")).encode(), ""),
    ]
    for number in range(dice.randrange(30)):
        if dice.random() < 0.6:
            rows.append(good(number))
        else:
            code, make = dice.choice(HOSTILE)
            rows.append((make(number), code))
    return rows


def read(content: bytes, dice: random.Random) -> LineReader:
    """Feed the content in pieces of random size."""
    reader, at = LineReader(LIMITS), 0
    while at < len(content):
        size = dice.choice([1, 7, 64, 1000, 10_000])
        reader.feed(content[at : at + size])
        at += size
    reader.finish()
    return reader


@pytest.mark.parametrize("first", range(0, COUNT, 50))
def test_every_line_is_counted_or_named(first: int) -> None:
    """Each line is accepted where it lies, blank, or refused with its number and its reason."""
    for seed in range(first, first + 50):
        check(seed)


def check(seed: int) -> None:
    """Read one generated file and compare with what its maker knows."""
    dice = random.Random(seed)
    rows = generated(seed)
    newline = dice.choice([b"\n", b"\r\n"])
    content = dice.choice([b"", b"\xef\xbb\xbf"]) + newline.join(raw for raw, _ in rows)
    content += dice.choice([b"", newline])

    reader = read(content, dice)

    expected = [(number, code) for number, (_, code) in enumerate(rows, 1) if code]
    accepted = [number for number, (raw, code) in enumerate(rows, 1) if raw.strip() and not code]
    assert [(problem.line, problem.code) for problem in reader.problems] == expected
    assert [one.line_no for one in reader.lines] == accepted
    for one in reader.lines:
        raw = content[one.offset : one.offset + one.length]
        assert json.loads(raw)["custom_id"] == one.custom_id


@pytest.mark.long
def test_a_custom_id_is_known_again_fifty_thousand_lines_later() -> None:
    """However far apart two lines are, the second with a custom_id is refused by its number."""
    many = Limits(lines=50_002, size=10**9, line_size=16_384)
    reader = LineReader(many)
    for number in range(50_000):
        reader.feed(good(number)[0] + b"\n")
    reader.feed(good(0)[0])
    reader.finish()

    assert [(p.line, p.code) for p in reader.problems] == [(50_001, "duplicate_custom_id")]


def test_more_lines_than_allowed_are_refused_by_number() -> None:
    """The first line too many is named; the file is never cut silently."""
    content = b"\n".join(good(number)[0] for number in range(LIMITS.lines + 2))

    reader = read(content, random.Random(1))

    assert [(p.line, p.code) for p in reader.problems] == [
        (41, "too_many_tasks"), (42, "too_many_tasks"),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"\n\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_lines_is_refused(content: bytes) -> None:
    """Nothing but blanks is an empty file."""
    assert [p.code for p in read(content, random.Random(1)).problems] == ["empty_file"]


def test_lines_that_begin_alike_have_the_same_prefix() -> None:
    """The hash of the beginning groups lines with one system prompt, whatever follows."""
    system = {"role": "system", "content": "You label sentences. " * 40}
    rows = [
        line(f"{n}", messages=[{"role": "system", "content": text}, {"role": "user", "content": n}])
        for n, text in (("a", system["content"]), ("b", system["content"]), ("c", "Other."))
    ]
    reader = read(b"\n".join(json.dumps(row).encode() for row in rows), random.Random(1))

    first, second, third = (one.prefix for one in reader.lines)
    assert first == second != third
