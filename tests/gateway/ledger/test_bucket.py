"""The leaky bucket of a limit per minute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.quota import MINUTE_MS, Bucket


def test_a_full_minute_may_come_at_once_and_comes_back_steadily() -> None:
    """Sixty per minute: sixty at once, then one more each second."""
    bucket = Bucket(at_ms=0)
    for _ in range(60):
        assert bucket.fits(1, 60)
        bucket = bucket.charged(1)

    assert not bucket.fits(1, 60)
    assert bucket.wait_ms(1, 60) == 1000
    assert not bucket.leaked(999, 60).fits(1, 60)
    assert bucket.leaked(1000, 60).fits(1, 60)
    assert not bucket.leaked(1000, 60).fits(2, 60)
    assert bucket.wait_ms(60, 60) == MINUTE_MS


def test_what_was_reserved_and_not_used_comes_back_at_once() -> None:
    """Settling below the reservation leaves exactly what was really used."""
    bucket = Bucket(at_ms=0).charged(1000).charged(-900)

    assert bucket.used() == 100


def test_more_than_the_limit_never_fits() -> None:
    """A request larger than the whole minute is told so instead of a time."""
    assert Bucket().wait_ms(1001, 1000) is None


@given(
    limit=st.integers(1, 10**6),
    steps=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 2000)), max_size=60),
)
def test_no_pattern_passes_the_limit(limit: int, steps: list[tuple[int, int]]) -> None:
    """Whatever comes when, no more is admitted in t ms than one burst and t ms of the rate."""
    bucket, now, admitted = Bucket(at_ms=0), 0, 0
    for gap, cost in steps:
        now += gap
        bucket = bucket.leaked(now, limit)
        wait = bucket.wait_ms(cost, limit)
        assert (wait == 0) == bucket.fits(cost, limit)
        if wait == 0:
            bucket = bucket.charged(cost)
            admitted += cost
        elif wait is not None:
            assert bucket.leaked(now + wait, limit).fits(cost, limit)
            assert not bucket.leaked(now + wait - 1, limit).fits(cost, limit)
        assert admitted * MINUTE_MS <= limit * (MINUTE_MS + now)


def test_a_clock_that_goes_back_gives_nothing_back() -> None:
    """The level never shrinks because time did."""
    bucket = Bucket(level=500, at_ms=10_000)

    assert bucket.leaked(4_000, 60).level == 500
