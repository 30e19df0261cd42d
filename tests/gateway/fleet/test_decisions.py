"""The fleet's pure decisions: probes, breaker, brake, rates."""

from __future__ import annotations

import random

import pytest

from gateway.engines.base import EngineReading, Health
from gateway.fleet.backoff import LONGEST_S, BackOff
from gateway.fleet.brake import Brake
from gateway.fleet.breaker import FAILURES_TO_OPEN, Breaker, Event, State, of_status
from gateway.fleet.health import Condition, Probes
from gateway.fleet.rates import Counters

OK, FAILED, LOADING, SILENT = Health.OK, Health.FAILED, Health.LOADING, Health.SILENT


@pytest.mark.parametrize(
    ("answers", "condition"),
    [
        ([OK], Condition.UP),
        ([OK, FAILED, FAILED], Condition.UP),
        ([OK, FAILED, FAILED, OK, FAILED, FAILED], Condition.UP),
        ([OK, FAILED, SILENT, FAILED], Condition.DOWN),
        ([OK, FAILED, FAILED, FAILED, OK], Condition.DOWN),
        ([OK, FAILED, FAILED, FAILED, OK, OK], Condition.UP),
        ([FAILED, FAILED], Condition.UNKNOWN),
        ([OK, LOADING], Condition.LOADING),
        ([LOADING, OK], Condition.UP),
        ([LOADING, FAILED], Condition.DOWN),
    ],
)
def test_down_after_three_up_after_two(answers: list[Health], condition: Condition) -> None:
    """
    Three failures in a row take a replica out, two successes bring it back, loading is neither.
    """
    probes = Probes()
    for answer in answers:
        probes = probes.after(answer)

    assert probes.condition is condition


def test_an_engine_that_sends_bytes_is_alive() -> None:
    """
    A health page that is slow at full load says nothing while content flows.
    """
    probes = Probes(Condition.UP)
    for _ in range(10):
        probes = probes.after(SILENT, bytes_flow=True)

    assert probes.condition is Condition.UP


def opened(by: Event, now_s: float = 0.0) -> Breaker:
    """Return a breaker that five failures have opened."""
    breaker = Breaker()
    for _ in range(5):
        breaker = breaker.after(by, now_s)
    return breaker


def test_five_failures_in_a_row_open_for_ten_seconds_then_twenty() -> None:
    """
    An open breaker lets one request try after 10 s, then 20 s, and at most 120 s apart.
    """
    breaker = opened(Event.FAILURE)
    assert breaker.at(9.9).state is State.OPEN
    assert breaker.at(10.0).state is State.HALF_OPEN

    breaker = breaker.after(Event.FAILURE, 10.0)
    assert breaker.at(29.9).state is State.OPEN
    assert breaker.at(30.0).state is State.HALF_OPEN
    for _ in range(10):
        breaker = breaker.after(Event.FAILURE, breaker.opened_s + breaker.period_s)
    assert breaker.period_s == 120.0
    assert breaker.after(Event.SUCCESS, 1e6) == Breaker()


def test_a_success_in_between_keeps_it_closed() -> None:
    """
    Only failures in a row count: four, a success and four more open nothing.
    """
    breaker = Breaker()
    for event in [Event.FAILURE] * 4 + [Event.SUCCESS] + [Event.FAILURE] * 4:
        breaker = breaker.after(event, 0.0)

    assert breaker.state is State.CLOSED


@pytest.mark.parametrize("seed", range(10))
def test_busy_and_refusals_never_open_it(seed: int) -> None:
    """
    However many 429, 503 and 4xx come, with too few failures in between, the breaker stays closed;
    but for 401, which speaks of our own key and opens it as any failure does.
    """
    dice, breaker, in_a_row = random.Random(seed), Breaker(), 0
    for step in range(1000):
        failing = dice.random() < 0.3 and in_a_row < FAILURES_TO_OPEN - 1
        event = of_status(500 if failing else dice.choice((200, 400, 403, 404, 413, 422, 429, 503)))
        if event is not None:
            in_a_row = in_a_row + 1 if event is Event.FAILURE else 0
            breaker = breaker.after(event, float(step))
        assert breaker.state is State.CLOSED
    for _ in range(FAILURES_TO_OPEN):
        breaker = breaker.after(of_status(401) or Event.SUCCESS, 1000.0)
    assert (breaker.state, breaker.cause) == (State.OPEN, Event.KEY_REFUSED)


@pytest.mark.parametrize(("cause", "closes"), [(Event.UNREACHABLE, True), (Event.FAILURE, False)])
def test_good_probes_close_only_what_a_broken_way_opened(cause: Event, closes: bool) -> None:
    """
    Two good health probes prove that the way is open again; they prove nothing about answers.
    """
    breaker = opened(cause)
    for event in [Event.PROBE_GOOD, Event.PROBE_BAD, Event.PROBE_GOOD]:
        breaker = breaker.after(event, 1.0)
    assert breaker.state is State.OPEN

    assert (breaker.after(Event.PROBE_GOOD, 2.0).state is State.CLOSED) is closes


def test_progress_ends_a_stall_and_nothing_else_does() -> None:
    """
    A stalled replica is trusted again when it moves, not when its health page answers.
    """
    breaker = Breaker().after(Event.STALLED, 0.0)
    for _ in range(5):
        breaker = breaker.after(Event.PROBE_GOOD, 1.0)
    assert breaker.state is State.OPEN

    assert breaker.after(Event.PROGRESS, 2.0) == Breaker()
    assert opened(Event.FAILURE).after(Event.PROGRESS, 2.0).state is State.OPEN


@pytest.mark.parametrize("status", [429, 503])
def test_busy_never_opens_a_breaker(status: int) -> None:
    """
    An engine that says "busy" is alive: it is neither a failure nor a success.
    """
    assert of_status(status) is None


def test_a_busy_replica_is_asked_again_soon_and_then_less_often() -> None:
    """
    The first pause is a quarter of a second and each further one twice as long, to a limit; an
    answer makes the next one short again, and what was refused together counts once.
    """
    back_off, now_s, pauses_s = BackOff(), 100.0, []
    for _ in range(5):
        back_off = back_off.after_busy(now_s)
        assert back_off.after_busy(now_s + 0.01) == back_off
        pauses_s.append(back_off.left_s(now_s))
        now_s = back_off.until_s
    assert pauses_s == [0.25, 0.5, 1.0, LONGEST_S, LONGEST_S]

    assert back_off.after_success().after_busy(now_s).left_s(now_s) == 0.25


@pytest.mark.parametrize(
    ("status", "event"),
    [(200, Event.SUCCESS), (400, Event.SUCCESS), (404, Event.SUCCESS), (500, Event.FAILURE)],
)
def test_a_clients_mistake_is_a_success_of_the_engine(status: int, event: Event) -> None:
    """
    4xx proves that the engine works; 5xx other than 503 proves that it does not.
    """
    assert of_status(status) is event


def test_three_samples_with_waiting_take_a_fifth_and_quiet_gives_back() -> None:
    """
    Pressure inside the engine lowers the slots; five quiet minutes under load give one back.
    """
    brake = Brake(10, 10)
    for second in range(2):
        brake = brake.after(second, 10, 1, False)
    assert brake.slots == 10
    brake = brake.after(2, 10, 1, False)
    assert brake.slots == 8

    brake = brake.after(4, 8, 0, False)
    assert brake.after(303, 8, 0, False).slots == 8
    brake = brake.after(304, 8, 0, False)
    assert brake.slots == 9
    assert brake.after(306, 0, 0, False).slots == 10


@pytest.mark.parametrize("slots", [1, 2])
def test_the_brake_leaves_one_slot(slots: int) -> None:
    """
    However great the pressure, one request may always run.
    """
    brake = Brake(slots, slots)
    for second in range(30):
        brake = brake.after(second, 1, 5, True)

    assert brake.slots == 1


def test_unknown_numbers_change_no_slots() -> None:
    """
    A silent metrics page neither brakes nor releases the brake.
    """
    brake = Brake(8, 4)
    for second in range(0, 2000, 10):
        brake = brake.after(second, None, None, False)

    assert brake.slots == 4


def numbers(made: int, incarnation: str | None = None, live: int = 0) -> EngineReading:
    """Return a reading with these counters."""
    return EngineReading(
        prompt_tokens_total=10 * made,
        completion_tokens_total=made,
        completion_tokens_live=live,
        incarnation=incarnation,
    )


def test_a_rate_needs_two_readings() -> None:
    """
    One reading gives no rate; two give the difference over the time between them.
    """
    counters = Counters()
    counters.add(0.0, numbers(100))
    assert counters.rates().tokens_out_per_s is None

    counters.add(2.0, numbers(150))
    assert counters.rates().tokens_out_per_s == 25.0
    assert counters.rates().tokens_in_per_s == 250.0


def test_a_restart_gives_no_negative_rate() -> None:
    """
    Counters that start over are a restart: unknown once, right from the second reading on.
    """
    counters = Counters()
    counters.add(0.0, numbers(1000))
    counters.add(2.0, numbers(1100))

    assert counters.add(4.0, numbers(10)) is True
    assert counters.rates().tokens_out_per_s is None
    counters.add(6.0, numbers(30))
    assert counters.rates().tokens_out_per_s == 10.0


def test_a_restart_that_overtook_its_old_counters_is_noticed() -> None:
    """
    The incarnation tells a restart even when the new counters are already larger.
    """
    counters = Counters()
    counters.add(0.0, numbers(10, "1"))

    assert counters.add(2.0, numbers(20, "2")) is True


def test_tokens_of_a_running_request_count_before_it_ends() -> None:
    """
    llama.cpp adds a request's tokens to its counter only at the end; the rate does not wait.
    """
    counters = Counters()
    counters.add(0.0, numbers(100, "1"))
    counters.add(2.0, numbers(100, "1", live=50))
    assert counters.rates().tokens_out_per_s == 25.0

    counters.add(4.0, numbers(180, "1", live=0))
    assert counters.rates().tokens_out_per_s == 20.0


def test_old_readings_leave_the_window() -> None:
    """
    A rate speaks of the last half minute, not of last night.
    """
    counters = Counters()
    for second in range(0, 100, 2):
        counters.add(second, numbers(1000 * min(second, 50)))

    assert counters.rates().tokens_out_per_s == 0.0
