"""Reads usage, finish reasons and errors out of an engine's answer while it passes by.

Reading never delays or changes a byte; only the one usage chunk that we asked for and the client
did not may be taken out, and so may the count so far that vLLM writes into each event.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from gateway.core import tier
from gateway.core.events import (
    EventSplitter,
    begin_of_count,
    counted,
    data_of,
    is_one_event,
    is_only_text,
)
from gateway.core.fields import Kind
from gateway.core.usage import READERS, Usage, count, read_chunk

# What may be held back of an event that is not complete yet: a usage chunk is far smaller, so
# anything longer is passed on as it comes.
HOLD_BACK: Final = 8 * 1024
# Above this an event is passed on unread.
READ_LIMIT: Final = 16 * 1024 * 1024
# Of a long plain answer (embeddings) only both ends are kept: usage stands in one of them.
PLAIN_KEEP: Final = 1024 * 1024
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
# As a member of an object; inside a text its quotes would be escaped.
_USAGE_MEMBER = re.compile(rb',\s*"usage"\s*:\s*\{(?:[^{}]|\{[^{}]*\})*\}')


class StreamReader:
    """Bytes of a stream in, bytes for the client out; `usage` fills on the way."""

    __slots__ = (
        "_apart", "_counts_along", "_drop_usage", "_has_count", "_is_cut", "_may_skip",
        "_may_strip", "_passed", "_read", "_splitter", "_tier", "chunks", "live", "usage",
    )  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        *,
        drop_usage: bool,
        keep_chunks: bool = False,
        names_tier: str = "",
        counts_along: bool = False,
        counts_apart: bool = False,
    ) -> None:
        # First what each event looks at, so that it lies close together.
        self.usage = Usage()
        self.live = False  # something other than comments came with the last bytes
        self._is_cut = False  # an event has come in part
        self._may_skip = kind is Kind.CHAT and not keep_chunks and not counts_along
        self._may_strip = kind is Kind.CHAT and not keep_chunks and counts_along
        self._has_count = False  # the last event held a count that only we asked for
        self._tier = names_tier  # to be named in each event, "" for none
        self.chunks: list[dict[str, Any]] | None = [] if keep_chunks else None
        self._splitter = EventSplitter()
        self._read = READERS.get(kind, read_chunk)
        self._drop_usage = drop_usage
        self._counts_along = counts_along  # each event may hold such a count
        self._apart = 0 if counts_apart else None  # sum over choices that are counted one by one
        self._passed = 0  # bytes of the incomplete event that were passed on already

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the engine and return the bytes the client gets now."""
        text = data.decode("latin-1")
        if not self._is_cut and is_one_event(text):
            # Almost always so: an engine sends its tokens one by one.
            if self._may_strip and (at := self._counted_text(text)) > 0:
                data = data[:at] + b"}\n\n"
            elif not self._is_text(text) and self._look_at(data[6:-2]):
                return b""
            elif self._has_count:
                data = _USAGE_MEMBER.sub(b"", data, 1)
            return tier.in_event(data, self._tier) if self._tier else data
        return self._feed(data)

    def _feed(self, data: bytes) -> bytes:
        """Take bytes that are cut in any way."""
        events = self._splitter.feed(data)
        self._is_cut = self._splitter.held > 0
        self.live = False
        if not (self._drop_usage or self._tier or self._counts_along):
            for event in events:
                self._look(event)
            return data
        if self._passed and not events:
            self._passed += len(data)
            return data
        out = []
        for event in events:
            if self._look(event) and not self._passed:
                continue
            if self._passed:
                event = event[self._passed :]
            else:
                if self._has_count:
                    event = _USAGE_MEMBER.sub(b"", event, 1)
                if self._tier:
                    event = tier.in_event(event, self._tier)
            out.append(event)
            self._passed = 0
        if self._splitter.held > HOLD_BACK:
            held = self._splitter.incomplete()
            self._passed = len(held)
            out.append(held)
        return b"".join(out)

    def close(self) -> bytes:
        """The stream has ended: return what was held back."""
        rest = self._splitter.rest()
        if rest:
            self._look(rest)
        held = self._drop_usage or self._tier or self._counts_along
        return rest[self._passed :] if held else b""

    def _look(self, event: bytes) -> bool:
        """Read one event; True when it is the usage chunk that only we asked for."""
        self._has_count = False
        data = data_of(event)
        if data is None or self._is_text(data.decode("latin-1")):
            return False
        return self._look_at(data)

    def _is_text(self, chunk: str) -> bool:
        """Count a chunk of text and nothing else; False when it has to be parsed."""
        if not (self._may_skip and is_only_text(chunk)):
            return False
        self.live = True
        self.usage.content_events += 1
        return True

    def _counted_text(self, event: str) -> int:
        """Read an event of text and its count, and return where that begins; 0 to parse it.

        The first one is parsed: it tells the length of the prompt too.
        """
        at = begin_of_count(event)
        if at < 0 or self.usage.so_far is None or not is_only_text(event[:at]):
            return 0
        tokens = counted(event, at)
        if tokens < 0:
            return 0
        self.live = True
        self.usage.content_events += 1
        self.usage.so_far[0] = tokens
        return at

    def _look_at(self, data: bytes) -> bool:
        self.live = True
        self._has_count = False
        if data == b"[DONE]":
            self.usage.done = True
            return False
        if len(data) > READ_LIMIT:
            return False
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            return False  # passed on as it is; what it may have told stays unknown
        if not isinstance(chunk, dict):
            return False
        if self._counts_along:
            self._has_count = self.usage.count_along(chunk)
        if self.chunks is not None:
            self.chunks.append(chunk)
        self._read(self.usage, chunk)
        if self._apart is not None and (told := count(chunk.get("usage"), "completion_tokens")):
            self._apart += told
            self.usage.completion_tokens = self._apart
        return self._drop_usage and chunk.get("choices") == [] and bool(chunk.get("usage"))


class PlainReader:
    """Reads usage out of an answer that is one JSON document.

    One that is to name its tier is held until its end, unless it is very long.
    """

    __slots__ = ("_head", "_head_size", "_tail", "_tier", "live", "usage")

    def __init__(self, names_tier: str = "") -> None:
        self.usage = Usage()
        self._tier = names_tier
        self.live = True
        self._head: list[bytes] = []
        self._head_size = 0
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the engine; they all go on to the client."""
        if self._head_size >= PLAIN_KEEP:
            self._tail = (self._tail + data)[-4096:]
            return data
        self._head.append(data)
        self._head_size += len(data)
        if not self._tier:
            return data
        if self._head_size >= PLAIN_KEEP:
            self._tier = ""
            return b"".join(self._head)
        return b""

    def close(self) -> bytes:
        """The answer has ended: read it, and return what was held of it."""
        head = b"".join(self._head)
        self._head.clear()
        if not self._tail:
            self._read(head)
            return tier.in_body(head, self._tier) if self._tier else b""
        match = _USAGE.search(self._tail) or _USAGE.search(head)
        if match:
            self.usage.take(orjson.loads(match.group(1)))
        return b""

    def _read(self, body: bytes) -> None:
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return
        if not isinstance(answer, dict):
            return
        self.usage.take(answer.get("usage"))
        for choice in answer.get("choices") or ():
            if isinstance(choice, dict) and choice.get("finish_reason"):
                self.usage.finish_reason = str(choice["finish_reason"])
        ending = answer.get("stop_reason") or answer.get("status")
        if ending and not self.usage.finish_reason:
            self.usage.finish_reason = str(ending)
        if isinstance(answer.get("input_tokens"), int):  # count_tokens
            self.usage.prompt_tokens = answer["input_tokens"]
        if error := answer.get("error"):
            self.usage.fail(error)
