"""What the rules are worth, by simulation of the real ledger under a virtual clock."""

from __future__ import annotations

import functools
from dataclasses import replace
from statistics import median

import pytest

from gateway.ledger import scenarios
from gateway.ledger.scenarios import OPEN, Scenario
from gateway.ledger.simulation import Result
from gateway.ledger.state import BATCH, INTERACTIVE

HOUR_S = 3600.0


@functools.cache
def baseline(seed: int) -> Result:
    return Scenario("no batch", 0.9, OPEN, batch_lines=0).run(seed, HOUR_S)


def ratio(seed: int, scenario: Scenario) -> float:
    """Return how much longer the 95th percentile of interactive waits is with batch."""
    return scenario.run(seed, HOUR_S).line(INTERACTIVE)[1] / baseline(seed).line(INTERACTIVE)[1]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_thousand_batch_lines_hardly_touch_those_who_chat(seed: int) -> None:
    """
    One user's job of 1,000 lines leaves the interactive p95 within 1.5 times of the same trace
    without it (13); were every queued line to age, it would be many times that.
    """
    assert ratio(seed, Scenario("batch", 0.9, OPEN)) <= 1.5
    unruly = replace(OPEN, batch_slots=3, batch_cap=3, feeds=False, accrual_window=False)
    assert ratio(seed, Scenario("all age", 0.9, unruly)) > 5


def test_one_persons_backlog_hardly_touches_the_others() -> None:
    """
    Somebody who queues 300 at once waits alone for them; the others' p95 stays within a few
    service times (12).
    """
    result = Scenario("hog", 0.8, OPEN, batch_lines=0, hog_queues=300).run(1, HOUR_S)

    assert result.others(scenarios.HOG)[1] < 3 * scenarios.SERVICE_S
    assert result.line(INTERACTIVE)[2] > 60 * scenarios.SERVICE_S


def test_batch_gets_what_is_idle_and_still_moves_when_nothing_is() -> None:
    """
    At 30 % interactive load batch runs without pause in its slots; at 112 % its oldest tickets
    still start, by age.
    """
    quiet = Scenario("quiet", 0.3, OPEN).run(1, HOUR_S)
    flooded = Scenario("flooded", 1.12, OPEN).run(1, HOUR_S)

    slots = scenarios.SLOTS // 4
    assert quiet.done[BATCH] > 0.9 * slots * HOUR_S / scenarios.SERVICE_S
    assert quiet.line(INTERACTIVE)[1] == 0
    assert flooded.aged > 0


def test_who_returns_when_told_is_admitted_and_came_in_time() -> None:
    """
    A client that waits exactly Retry-After is admitted at its return in at least 90 % of cases,
    and the place had been free for at most half of that time (median).
    """
    returns = scenarios.returning(1, HOUR_S / 2).returns

    assert len(returns) > 100
    assert sum(admitted for _, _, admitted in returns) >= 0.9 * len(returns)
    free = [max(0, free_ms or 0) / retry_ms for retry_ms, free_ms, _ in returns]
    assert median(free) <= 0.5
