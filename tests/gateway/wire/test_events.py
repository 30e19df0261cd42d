"""Server-sent events come out whole and byte for byte, however the network cuts them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.events import EventSplitter, data_of

PIECES = [
    b"data: a",
    b'data: {"x":1}',
    b": ping",
    b"event: y",
    b"data:",
    b"id: 7",
    "データ".encode(),
]
ENDS = [b"\n", b"\r\n", b"\r"]


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Feed the stream in the given pieces and return its events and the rest."""
    splitter, events, start = EventSplitter(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        events += splitter.feed(stream[start:cut])
        start = cut
    return [*events, splitter.rest()]


@pytest.mark.parametrize("end", ENDS)
def test_any_cut_gives_the_same_data(end: bytes) -> None:
    """Each event's data is the same wherever one cut falls, for each kind of line end."""
    stream = b"".join(
        line + end for line in (b"data: one", b"", b": ping", b"", b"data: two", b"data: 2", b"")
    )

    for cut in range(len(stream) + 1):
        events = split(stream, [cut])
        assert b"".join(events) == stream
        found = [data for event in events if (data := data_of(event)) is not None]
        assert found == [b"one", b"two\n2"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*PIECES, b""]), max_size=12), st.integers(0, 2**32))
def test_nothing_is_lost_or_added(lines: list[bytes], seed: int) -> None:
    """Whatever comes in any pieces goes out as the same bytes, with the same data in it."""
    dice = random.Random(seed)
    stream = b"".join(line + dice.choice(ENDS) for line in lines)
    cuts = [dice.randrange(len(stream) + 1) for _ in range(6)] if stream else []

    events = split(stream, cuts)

    assert b"".join(events) == stream
    whole = [data_of(event) for event in split(stream, [])]
    assert [d for d in map(data_of, events) if d] == [d for d in whole if d]


def test_a_long_event_costs_one_copy() -> None:
    """An event of 5 MiB in small pieces comes out whole; what is held back is counted."""
    event = b"data: " + b"x" * (5 << 20) + b"\n\n"
    splitter = EventSplitter()

    found = []
    for start in range(0, len(event), 60_000):
        found += splitter.feed(event[start : start + 60_000])

    assert found == [event]
    assert splitter.held == 0
