"""Usage, finish reason and errors are read from every engine's answers, whatever the cut."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.events import is_only_text
from gateway.core.fields import Kind
from gateway.core.usage import Usage, read_chunk
from gateway.core.usage_reader import HOLD_BACK, PlainReader, StreamReader


def sse(*chunks: dict[str, Any] | str) -> bytes:
    """Write chunks as a stream."""
    return b"".join(
        b"data: " + (c if isinstance(c, str) else json.dumps(c)).encode() + b"\n\n" for c in chunks
    )


def said(text: str, reason: str | None = None, **rest: Any) -> dict[str, Any]:
    """Return a chat chunk."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **rest}


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}
CHAT = sse(
    said(""), said("hé"), said("llo"), said("", "stop"), {"choices": [], "usage": USAGE}, "[DONE]"
)


def read(stream: bytes, cut: int, **options: Any) -> tuple[bytes, Usage]:
    """Return what the client gets and what was read, for one cut."""
    reader = StreamReader(options.pop("kind", Kind.CHAT), **{"drop_usage": False, **options})
    out = reader.feed(stream[:cut]) + reader.feed(stream[cut:]) + reader.close()
    return out, reader.usage


@pytest.mark.parametrize("drop", [False, True])
def test_usage_survives_any_cut(drop: bool) -> None:
    """The counts come out the same wherever the network splits the stream, and so do the bytes."""
    expected = CHAT if not drop else CHAT.replace(sse({"choices": [], "usage": USAGE}), b"")

    for cut in range(len(CHAT) + 1):
        out, usage = read(CHAT, cut, drop_usage=drop)
        assert out == expected
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (7, 5, 3)
        assert (usage.finish_reason, usage.content_events, usage.whole) == ("stop", 2, True)


def counted(chunk: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return a chunk with a count so far, as vLLM writes it on demand."""
    return chunk | {"usage": {"prompt_tokens": 7, "total_tokens": 9, "completion_tokens": tokens}}


def test_counts_along_are_read_and_taken_out_whatever_the_cut() -> None:
    """
    Counts in each event, one for each choice, tell what a stream had relayed when it was cut; the
    client gets the events as if nobody had asked for them.
    """
    told = 'say ,"usage":{"a":1}'
    plain = [said(""), said("hé"), said(told), said("x", index=1)]
    plain[3]["choices"][0]["index"] = plain[3].pop("index")
    stream = sse(*(counted(c, n) for c, n in zip(plain, (0, 2, 5, 4), strict=True)))

    for cut in range(len(stream) + 1):
        out, usage = read(stream, cut, counts_along=True)
        assert out == sse(*plain)
        assert (usage.prompt_tokens, usage.relayed, usage.completion_tokens) == (7, 9, None)
    usage = read(stream + CHAT, 5, counts_along=True)[1]
    assert usage.completion_tokens == 3  # the engine's last word
    assert read(stream, 5)[0] == stream


TEXTS = st.text(max_size=5) | st.sampled_from(['"', ',"usage":{"completion_tokens":9}}', "}}\n\n"])
COUNTS = st.sampled_from(
    [{}, {"completion_tokens": 5}, {"completion_tokens": -1}, {"completion_tokens": None},
     {"completion_tokens": 6, "completion_tokens_details": None},
     {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 1}}]
)  # fmt: skip


@given(texts=st.lists(st.tuples(TEXTS, COUNTS, st.integers(0, 1)), max_size=4), last=COUNTS)
@settings(max_examples=100, deadline=None)
def test_a_count_is_taken_out_unparsed_as_if_it_were_parsed(
    texts: list[tuple[str, dict[str, Any], int]], last: dict[str, Any]
) -> None:
    """Events as vLLM writes them give the same bytes and counts whole as they do when cut."""
    events = []
    for text, count, index in texts:
        chunk = said(text, usage={"prompt_tokens": 7, "total_tokens": 9} | count)
        chunk["choices"][0]["index"] = index
        events.append(b"data: " + orjson.dumps(chunk) + b"\n\n")
    events.append(b"data: " + orjson.dumps(said("", "stop", usage=last)) + b"\n\n")
    whole = StreamReader(Kind.CHAT, drop_usage=True, counts_along=True)
    parts = StreamReader(Kind.CHAT, drop_usage=True, counts_along=True)

    out = [whole.feed(event) for event in events]

    assert out == [parts.feed(event[:9]) + parts.feed(event[9:]) for event in events]
    for name in Usage.__slots__:
        assert getattr(whole.usage, name) == getattr(parts.usage, name)


def test_choices_that_are_counted_apart_are_added_up() -> None:
    """llama.cpp ends each of several choices with a count of its own; the sum is what was made."""
    ends = [{"choices": [], "usage": {"prompt_tokens": 31, "completion_tokens": n}} for n in (6, 4)]
    stream = sse(said("a"), said("b"), said("", "stop"), ends[0], said("", "stop"), ends[1])

    for cut in range(0, len(stream), 7):
        out, usage = read(stream, cut, drop_usage=True, counts_apart=True)
        assert out == stream.replace(sse(ends[0]), b"").replace(sse(ends[1]), b"")
        assert (usage.prompt_tokens, usage.completion_tokens) == (31, 10)
    assert read(stream, 0)[1].completion_tokens == 4


def test_a_usage_chunk_with_a_choice_stays() -> None:
    """llama.cpp puts the usage of /v1/completions beside a choice: that chunk is content."""
    stream = sse({"choices": [{"text": "", "finish_reason": "length"}], "usage": USAGE}, "[DONE]")

    out, usage = read(stream, 9, drop_usage=True, kind=Kind.COMPLETIONS)

    assert out == stream
    assert (usage.completion_tokens, usage.finish_reason) == (3, "length")


def test_a_long_event_is_passed_on_while_it_comes() -> None:
    """An event too long to be the usage chunk is not held back until its end."""
    stream = sse(said("x" * 100_000))
    reader = StreamReader(Kind.CHAT, drop_usage=True)

    first = reader.feed(stream[: HOLD_BACK + 10])
    rest = reader.feed(stream[HOLD_BACK + 10 :]) + reader.close()

    assert len(first) == HOLD_BACK + 10
    assert first + rest == stream
    assert reader.usage.content_events == 1


@pytest.mark.parametrize(
    ("details", "cached"), [({"cached_tokens": 900}, 900), (None, None), ({}, None)]
)
def test_unknown_cached_tokens_are_not_zero(details: Any, cached: int | None) -> None:
    """An engine that does not tell its cached tokens leaves them unknown."""
    usage = Usage()

    usage.take({"prompt_tokens": 1000, "completion_tokens": 1, "prompt_tokens_details": details})

    assert usage.cached_tokens == cached


@pytest.mark.parametrize(
    "broken",
    [
        sse(said("a"), {"error": {"message": "boom", "code": 500}}, "[DONE]"),
        sse(said("a"), "[DONE]"),
        sse(said("a")),
    ],
)
def test_done_does_not_make_a_stream_whole(broken: bytes) -> None:
    """A stream without a finish reason, or with an error event, is not whole."""
    out, usage = read(broken, 20)

    assert out == broken
    assert not usage.whole


def test_messages_count_cached_tokens_in() -> None:
    """/v1/messages leaves cached tokens out of input_tokens; our prompt count includes them."""
    stream = sse(
        {"type": "message_start", "message": {"usage": {
            "input_tokens": 1, "cache_read_input_tokens": 33, "output_tokens": 0}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage":
            {"output_tokens": 5}},
        {"type": "message_stop"},
    )  # fmt: skip

    _, usage = read(stream, 50, kind=Kind.MESSAGES)

    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (34, 33, 5)
    assert usage.whole


def test_responses_end_with_their_last_event() -> None:
    """/v1/responses tells usage and its end in response.completed."""
    stream = sse(
        {"type": "response.output_text.delta", "delta": "hi"},
        {"type": "response.completed", "response": {"status": "completed", "usage": {
            "input_tokens": 31, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 24},
            "output_tokens_details": {"reasoning_tokens": 2}}}},
    )  # fmt: skip

    _, usage = read(stream, 30, kind=Kind.RESPONSES)

    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (31, 24, 5)
    assert (usage.reasoning_tokens, usage.whole) == (2, True)


def test_garbage_is_passed_on_and_read_past() -> None:
    """An event that is not JSON, not an object or not UTF-8 changes nothing for the others."""
    stream = b'data: {"choices":[\n\ndata: [1]\n\ndata: \xff\xfe\n\n' + CHAT

    out, usage = read(stream, 13)

    assert out == stream
    assert usage.completion_tokens == 3


@pytest.mark.parametrize("size", [10, 300_000])
def test_plain_usage_is_found_in_answers_of_any_size(size: int) -> None:
    """Embeddings of many megabytes are not kept in memory, and their usage is still read."""
    body = json.dumps(
        {"data": [{"embedding": [0.125] * size}], "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    ).encode()
    reader = PlainReader()

    for start in range(0, len(body), 65_536):
        reader.feed(body[start : start + 65_536])
    reader.close()

    assert reader.usage.prompt_tokens == 9


TEXTS = st.sampled_from(
    ["", "word ", '"usage"', '"error":', '"delta":{"content":"', '\\"finish_reason":null', "\u00e9"]
)
NAMES = ("content", "reasoning_content", "reasoning", "tool_calls")
MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(NAMES, TEXTS),
    "tool_calls": st.just([{"index": 0}]),
}
DELTAS = st.lists(st.sampled_from(NAMES), unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: MEMBERS[name] for name in names})
)
CHOICES = st.fixed_dictionaries(
    {"delta": DELTAS, "finish_reason": st.sampled_from([None, None, "stop"])}
)
CHUNKS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, min_size=1, max_size=2)},
    optional={
        "usage": st.sampled_from([None, {"completion_tokens": 3}]),
        "error": st.sampled_from([None, {"code": "boom"}]),
        "model": TEXTS,
    },
)


@settings(max_examples=300, deadline=None)
@given(CHUNKS)
def test_what_is_seen_without_parsing_is_what_parsing_finds(chunk: dict[str, Any]) -> None:
    """A chunk known by its bytes as text alone is one event of content and tells nothing else."""
    if is_only_text(orjson.dumps(chunk).decode("latin-1")):
        found, wanted = Usage(), Usage()
        wanted.content_events = 1
        read_chunk(found, chunk)
        assert all(getattr(found, one) == getattr(wanted, one) for one in Usage.__slots__)


@pytest.mark.parametrize("name", [b"content", b"reasoning_content", b"reasoning"])
def test_a_token_of_text_is_not_parsed(name: bytes) -> None:
    """What engines send most, a choice with text or thought, is known by its bytes."""
    chunk = orjson.dumps(said("word")).replace(b"content", name)
    assert is_only_text(chunk.decode("latin-1"))
