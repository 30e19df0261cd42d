"""Takes a line's request out of its line, byte for byte.

The engine shall get what the person wrote: reading a body and writing it again would round
numbers of more than 64 bits and rename what was spelled in another way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import orjson

NOT_SENT = frozenset({"stream", "stream_options"})  # a line's answer comes whole
SPACE = re.compile(r"[ \t\n\r]*")
# Only the end of each value is wanted, so numbers stay texts: they may be of any size.
_decoder = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)


class Member(NamedTuple):
    """One member of an object: its name, and where it and its value lie."""

    name: str
    start: int
    value: int
    end: int


def members(text: str) -> Iterator[Member]:
    """Yield the members of a JSON object that is known to be well-formed."""
    at = _after(text, text.index("{") + 1)
    while text[at] != "}":
        start = at
        name, at = _decoder.raw_decode(text, at)
        value = _after(text, text.index(":", at) + 1)
        _, end = _decoder.raw_decode(text, value)
        yield Member(name, start, value, end)
        at = _after(text, end)
        if text[at] == ",":
            at = _after(text, at + 1)


def _after(text: str, at: int) -> int:
    """Return where white space ends."""
    match = SPACE.match(text, at)
    return match.end() if match else at


def request_body(raw: bytes) -> bytes:
    """Return what of a line goes to the gateway."""
    body = _last_member(raw) or _searched(raw)
    if b'"stream' not in body:
        return body
    text = body.decode()
    kept = [text[m.start : m.end] for m in members(text) if m.name not in NOT_SENT]
    return ("{" + ",".join(kept) + "}").encode()


def _last_member(raw: bytes) -> bytes | None:
    """Return the body when it is what a line ends with, as nearly always.

    What stands between the first `"body":` and the line's last brace is the body if it is one
    whole object: that brace then closes the object the name belongs to, and it closes the line's.
    """
    name = raw.find(b'"body"')
    start = raw.find(b"{", name)
    if name < 0 or raw[name + 6 : start].strip() != b":":
        return None
    body = raw[start : raw.rindex(b"}")].rstrip()
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return body


def _searched(raw: bytes) -> bytes:
    """Return the body, wherever it stands; of two the last counts, as everywhere."""
    text, body = raw.decode(), ""
    for member in members(text):
        if member.name == "body":
            body = text[member.value : member.end]
    return body.encode()
