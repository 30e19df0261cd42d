"""A replica that works far below its measured speed is noticed; a busy one is not."""

from __future__ import annotations

import pytest

from gateway.engines.base import EngineReading
from gateway.fleet.pace import Pace
from quotas.snapshots.measured import Measured, measured_from_json

MEASURED = Measured("run_1", {"engine": "llamacpp"}, 800.0, ((1, 30.0), (4, 100.0), (8, 120.0)))


def run(
    minutes: float, *, running: int, out_per_s: float, in_per_s: float = 0.0, prefill_s: float = 0.0
) -> Pace:
    """Let a replica work steadily, read every two seconds."""
    pace = Pace()
    for second in range(0, int(60 * minutes) + 1, 2):
        reading = EngineReading(
            running=running,
            prompt_tokens_total=int(second * in_per_s),
            cached_tokens_total=0,
            completion_tokens_total=int(second * out_per_s),
            completion_tokens_live=0,
        )
        pace.add(float(second), reading, MEASURED, prefill_s)
    return pace


@pytest.mark.parametrize(
    ("running", "out_per_s", "in_per_s", "slow"),
    [
        (1, 30, 0, False),
        (1, 1.5, 0, True),
        (4, 100, 0, False),
        (4, 5, 0, True),
        (8, 60, 400, False),
        (8, 3, 20, True),
        (2, 0.5, 790, False),
        (2, 0.0, 36, True),
        (4, 26, 0, False),
        (4, 24, 0, True),
    ],
)
def test_a_twentieth_of_the_measured_speed_is_slow_and_busy_is_not(
    running: int, out_per_s: float, in_per_s: float, slow: bool
) -> None:
    """
    Prefill and decode count together as time at the measured rates, at the same concurrency.
    """
    assert run(2, running=running, out_per_s=out_per_s, in_per_s=in_per_s).is_slow is slow


def test_it_is_noticed_within_two_minutes_and_says_what_it_may_be() -> None:
    """
    One minute of slow work is enough, and the note names the usual cause for that engine.
    """
    pace = run(1.1, running=4, out_per_s=5)

    assert "5% of its measured speed" in pace.note("llamacpp")
    assert "-ngl" in pace.note("llamacpp")
    assert "-ngl" not in pace.note("vllm")
    assert run(0.5, running=4, out_per_s=5).note("llamacpp") == ""


def test_an_idle_engine_has_nothing_to_prove() -> None:
    """
    Without work there is no speed: nothing is judged, nothing is flagged.
    """
    assert run(5, running=0, out_per_s=0).share is None


def test_a_long_prompt_being_read_is_not_slowness() -> None:
    """
    Counters stand still while a long prompt is read; until it is through nothing is judged.
    """
    assert run(5, running=1, out_per_s=0, prefill_s=100).share is None


def test_unknown_numbers_and_unmeasured_engines_are_not_judged() -> None:
    """
    No measurement, or no counters, and nothing is said.
    """
    pace = Pace()
    for second in range(0, 200, 2):
        pace.add(second, EngineReading(running=4, completion_tokens_total=0), None, 0.0)
    assert pace.share is None
    for second in range(200, 400, 2):
        pace.add(second, EngineReading(running=4), MEASURED, 0.0)
    assert pace.share is None


def test_what_was_measured_travels_whole() -> None:
    """
    What is written to Redis reads back the same, and rates between points lie on a line.
    """
    assert measured_from_json(MEASURED.to_json()) == MEASURED
    assert [MEASURED.decode_at(n) for n in (0.5, 1, 2.5, 8, 20)] == [30, 30, 65, 120, 120]
