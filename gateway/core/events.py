"""Splits a stream of server-sent events into whole events, however the network cut it.

Rule 1: the pieces handed out, joined, are the bytes that came in; nothing is repaired.
Rule 2: a line ends with LF, CR LF or CR; an event ends with an empty line.
Rule 3: no I/O, and memory only for the one event that is not complete yet.
"""

from __future__ import annotations

import re
from typing import Final

# A lone CR counts as a line end only when no LF follows it; at the very end of what has come so
# far it counts, and the LF that may follow then opens the next event as an empty line.
_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
_LOOK_BACK = 3  # bytes of a boundary that may lie before the newest cut
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Feed bytes, get whole events."""

    __slots__ = ("_parts", "_tail", "held")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # the event that is not complete yet
        self._tail = b""  # its last bytes, looked at again with the next ones
        self.held = 0  # its size so far

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now, each with its closing empty line."""
        window = self._tail + data if self._tail else data
        end = self._first_end(window)
        if end < 0:
            self._parts.append(data)
            self.held += len(data)
            self._tail = window[-_LOOK_BACK:]
            return []
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
            end += len(data) - len(window)
        return self._cut(data, end)

    @staticmethod
    def _first_end(window: bytes) -> int:
        if b"\r" not in window:
            at = window.find(b"\n\n")
            return at + 2 if at >= 0 else -1
        match = _BLANK_LINE.search(window)
        return match.end() if match else -1

    def _cut(self, data: bytes, end: int) -> list[bytes]:
        events = [data[:end]]
        start = end
        if b"\r" in data:
            for match in _BLANK_LINE.finditer(data, start):
                events.append(data[start : match.end()])
                start = match.end()
        else:
            while (at := data.find(b"\n\n", start)) >= 0:
                events.append(data[start : at + 2])
                start = at + 2
        rest = data[start:]
        self._tail = rest[-_LOOK_BACK:]
        self.held = len(rest)
        if rest:
            self._parts.append(rest)
        return events

    def incomplete(self) -> bytes:
        """Show what has come of the event that is not complete yet."""
        return b"".join(self._parts)

    def rest(self) -> bytes:
        """Give away what is left when the stream has ended."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self._tail = b""
        self.held = 0
        return rest


def data_of(event: bytes) -> bytes | None:
    """Return the data of one event; None when it carries none (a comment, an empty line)."""
    if event.startswith(b"data: ") and event.count(b"\n") == 2 and event.endswith(b"\n\n"):
        return event[6:-2]
    lines = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


def event(payload: bytes, name: bytes = b"") -> bytes:
    """Write one event of our own."""
    head = b"event: " + name + b"\n" if name else b""
    return head + b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """Write a comment line: invisible to clients, life to the proxies between."""
    return b": " + text.encode() + b"\n\n"


# As vLLM writes it. An event is read as Latin-1, a character for each byte; inside a text quotes
# are escaped, so these can only be members.
_COUNT: Final = ',"usage":{'
_COUNTED: Final = '"completion_tokens":'
_FIRST_CHOICE: Final = '"index":0,"delta":'
_CLOSING: Final = "}}\n\n"  # of the count, the chunk and the event


def begin_of_count(event: str) -> int:
    """Return where the count so far begins in an event of one choice; -1 for any other event.

    It is the last member of its chunk, so what is before it and a brace are the event without it.
    """
    at = event.rfind(_COUNT)
    is_last = event.endswith(_CLOSING) and event.find("}", at) == len(event) - len(_CLOSING)
    return at if at > 0 and is_last and _FIRST_CHOICE in event else -1


def counted(event: str, at: int) -> int:
    """Return how many tokens the count that begins there tells of; -1 where that is no number."""
    found = event.find(_COUNTED, at)
    if found < 0:
        return -1
    first = found + len(_COUNTED)
    last = event.find(",", first)
    digits = event[first : last if last > 0 else event.find("}", first)]
    return int(digits) if digits.isdecimal() else -1


# What nearly every event of a chat is: one choice, some text, nothing else that is read here.
# Inside a text quotes are escaped, so these bytes can only be members.
_DELTA: Final = '"delta"'
_TEXTS: Final = (
    '"delta":{"content":"', '"delta":{"reasoning_content":"', '"delta":{"reasoning":"',
)  # fmt: skip
_GOES_ON: Final = '"finish_reason":null'


def is_only_text(chunk: str) -> bool:
    """Can it be seen, without parsing, that a chunk carries text and tells nothing more?

    The chunk is read as Latin-1, a character for each byte: a string is searched in a third of the
    time that bytes take.
    """
    at = chunk.find(_DELTA)
    if at < 0:
        return False
    begin = _begin_of_text(chunk, at)
    return (
        begin > 0
        and chunk.find('"', begin) > begin  # not an empty text
        and chunk.find(_GOES_ON, begin) > 0
        and chunk.find(_DELTA, begin) < 0
        and '"usage"' not in chunk
        and '"error"' not in chunk
    )


def _begin_of_text(chunk: str, at: int) -> int:
    """Return where the text of the delta begins, 0 when something else comes first."""
    for opening in _TEXTS:
        if chunk.find(opening, at) == at:
            return at + len(opening)
    return 0


def is_one_event(text: str) -> bool:
    """Is it one event, whole, with a single line of data?"""
    return (
        text.startswith("data: ")
        and text.find("\n") == len(text) - 2
        and text.endswith("\n")
        and "\r" not in text
    )
