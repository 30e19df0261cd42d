"""Numbers and times in words."""

from __future__ import annotations

import pytest

from portal import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (645, "10 min 45 s"), (1800, "30 min"),
     (34080, "9 h 28 min"), (3600, "1 h"), (6 * 86400, "6 days")],
)  # fmt: skip
def test_spans_have_two_units_at_most(seconds: float, text: str) -> None:
    """
    A length of time is written in the units people would say.
    """
    assert words.span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (0.4, "at once"), (9.2, "9 s"), (43, "45 s"), (600, "10 min"),
     (5400, "1.5 h"), (7200, "2 h")],
)  # fmt: skip
def test_estimates_are_coarse_and_unknown_is_said(seconds: float | None, text: str) -> None:
    """
    An estimate is rounded, and a missing one is unknown and never 0.
    """
    assert words.about(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "unknown"), (0, "0"), (812, "812"), (9400, "9.4k"), (126_000, "126k"),
     (999_400, "999k"), (999_700, "1M"), (1_820_000, "1.82M"), (5_000_000_000, "5G")],
)  # fmt: skip
def test_counts_are_read_at_a_glance(number: float | None, text: str) -> None:
    """
    Counts keep three digits and a unit, and do not jump at the edges.
    """
    assert words.count(number) == text
