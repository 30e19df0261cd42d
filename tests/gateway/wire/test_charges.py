"""What a request is charged, and in which window."""

from __future__ import annotations

import datetime as dt

import pytest

from gateway.charges import UNSTATED_OUTPUT, Plan, counted, reserve
from gateway.quota import duration
from quotas.snapshots import counters
from quotas.snapshots.directory import Limits

LIMITS = Limits(person={"tokens_per_day": 10_000, "tokens_per_month": 200_000})


@pytest.mark.parametrize(
    ("zone", "now", "day", "ends"),
    [
        ("Europe/Berlin", "2026-03-28T23:30Z", "2026-03-29", "2026-03-29T22:00Z"),  # 23 hours
        ("Europe/Berlin", "2026-10-25T22:59Z", "2026-10-25", "2026-10-25T23:00Z"),  # 25 hours
        ("Europe/Berlin", "2026-10-25T23:00Z", "2026-10-26", "2026-10-26T23:00Z"),
        ("Asia/Tokyo", "2026-11-20T06:43Z", "2026-11-20", "2026-11-20T15:00Z"),  # first at 15:43
    ],
)
def test_the_enforced_day_is_that_of_the_books(zone: str, now: str, day: str, ends: str) -> None:
    """The window charged, its reset and the books' counter are those of one local day."""
    at, end = (dt.datetime.fromisoformat(text) for text in (now, ends))
    (of_day, _) = counted(LIMITS, "interactive", {"person": "7"}, at, zone)
    charge = of_day.charge(100)

    assert (charge.window, charge.ends_at_ms) == (day, int(end.timestamp()) * 1000)
    assert of_day.in_books == counters.field(day, "interactive", "person", "7")


@pytest.mark.parametrize(
    ("stated", "most", "bound", "tokens"),
    [
        (500, None, None, 2 * 500 + 100),  # what the client asks for
        (None, None, UNSTATED_OUTPUT, 2 * UNSTATED_OUTPUT + 100),
        (None, 300, 300, 2 * 300 + 100),  # the pool's own bound is tighter
    ],
)
def test_a_reservation_is_prompt_and_longest_answer(
    stated: int | None, most: int | None, bound: int | None, tokens: int
) -> None:
    """Two sequences reserve two answers; without a stated length the engine is told the bound."""
    limits = counted(LIMITS, "batch", {"person": "7"}, dt.datetime.now(dt.UTC), "UTC")
    made = reserve(Plan(limits), {}, prompt=100, weight=2, stated=stated, most=most, generates=True)

    assert made.tokens == tokens
    assert made.most_output == (bound if stated is None else most)
    assert {charge.amount for charge in made.charges} == {tokens}


def test_durations_are_written_as_openai_does() -> None:
    """Milliseconds, seconds, minutes, hours; never more precise than it is true."""
    assert [duration(ms) for ms in (17, 1500, 20_000, 360_000, 3_663_000)] == [
        "17ms", "1.5s", "20s", "6m0s", "1h1m3s",
    ]  # fmt: skip
