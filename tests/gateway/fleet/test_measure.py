"""Measuring: plans, reports and the fingerprint."""

from __future__ import annotations

import pytest

from gateway.engines.base import EngineFacts
from gateway.measure.fingerprint import CoResident, Difference, diff, digest, fingerprint
from gateway.measure.plan import Point, Prompts, ladder, make, steps
from gateway.measure.report import (
    Answer,
    PointReport,
    Sample,
    decode_rate,
    knee,
    prefill_rate,
    report,
    rounded,
    sentence,
)

# Plans


@pytest.mark.parametrize(
    ("slots", "rungs"),
    [(1, (1, 2)), (2, (1, 2, 4)), (4, (1, 2, 4, 8)), (6, (1, 2, 4, 6, 12)), (8, (1, 2, 4, 8, 16))],
)
def test_concurrency_doubles_to_the_slots_and_one_step_beyond(slots, rungs) -> None:
    """
    1, 2, 4 … up to the slots, the slots themselves, and one step beyond to see the queue.
    """
    assert ladder(slots) == rungs


@pytest.mark.parametrize(
    ("context", "lengths"),
    [(None, (128, 2048, 10_000)), (2400, (128, 2048)), (256, (96,)), (20_000, (128, 2048, 10_000))],
)
def test_lengths_that_do_not_fit_are_left_out(context, lengths) -> None:
    """
    Only prompts that fit the context with their answer are planned; if none does, the longest.
    """
    assert make(slots=1, context=context, seed=1).lengths == lengths


def test_repeats_are_interleaved_and_turned_round() -> None:
    """
    Every point comes once per repeat, and in the other direction each time.
    """
    plan = make(slots=2, context=None, seed=1, lengths=(10, 20), repeats=2)
    order = [step.point for step in steps(plan) if step.kind == "cold"]
    half = len(order) // 2

    assert steps(plan)[0].kind == "first"
    assert set(order[:half]) == set(plan.points)
    assert order[half:] == order[:half][::-1]
    assert [step.number for step in steps(plan)] == list(range(len(steps(plan))))


def test_prompts_never_begin_alike_and_learn_their_length() -> None:
    """
    Five hundred prompts share no beginning, and come out as long as planned once one was counted.
    """
    prompts = Prompts(1)
    texts = [prompts.make(50) for _ in range(500)]
    assert len({text[:4] for text in texts}) == 500

    prompts.learn(texts[0], 2 * len(texts[0].split()))
    assert len(prompts.make(1000).split()) == pytest.approx(500, rel=0.02)


def test_the_same_seed_makes_the_same_prompts() -> None:
    """
    A plan can be repeated to the letter.
    """
    assert Prompts(7).make(40) == Prompts(7).make(40) != Prompts(8).make(40)


# Figures


def answer(first_s: float, tokens: int, step_s: float, prompt: int = 100) -> Answer:
    """Return an answer that decodes steadily."""
    times = tuple(first_s + n * step_s for n in range(tokens))
    return Answer(prompt, 0, tokens, first_s, times[-1], times)


def test_decode_counts_only_while_all_are_writing() -> None:
    """
    Two answers of 50 tokens/s each make 100 together, although one began later.
    """
    together = [answer(1.0, 101, 0.02), answer(1.5, 101, 0.02)]

    assert decode_rate(together) == pytest.approx(100, rel=0.02)


def test_decode_of_answers_that_never_overlap_is_the_whole_span() -> None:
    """
    More requests than slots: the rate is what came out from the first token to the last.
    """
    apart = [answer(1.0, 101, 0.02), answer(3.0, 101, 0.02)]

    assert decode_rate(apart) == pytest.approx(50, rel=0.02)


def test_pieces_are_not_tokens() -> None:
    """
    An answer whose pieces hold three tokens each decodes as fast as its tokens say.
    """
    merged = Answer(100, 0, 301, 1.0, 7.0, tuple(1.0 + 0.06 * n for n in range(101)))

    assert decode_rate([merged]) == pytest.approx(50, rel=0.01)


def test_prefill_is_what_was_read_until_the_last_first_token() -> None:
    """
    Four prompts of 500 tokens read in two seconds are 1,000 tokens/s, cached ones not counted.
    """
    answers = [answer(0.5 * n, 2, 0.1, prompt=500) for n in (1, 2, 3, 4)]

    assert prefill_rate(answers) == pytest.approx(1000)
    assert prefill_rate([Answer(500, 400, 2, 1.0, 1.1, (1.0, 1.1))]) == 100


def curve(*rates: float) -> list[PointReport]:
    """Return points of 1, 2, 4 … users with these total decode rates."""
    plan = make(slots=8, context=None, seed=1, lengths=(100,), repeats=1)
    samples = [
        Sample(n, "cold", Point(100, 2**n), 0, (answer(1.0, 100, 1 / rate),))
        for n, rate in enumerate(rates)
    ]
    return list(report(plan, samples).points)


@pytest.mark.parametrize(
    ("rates", "users"),
    [((50, 100, 190, 198), 4), ((50, 100, 200, 400), 8), ((50, 50, 51), 1), ((50,), 1)],
)
def test_the_knee_is_where_the_total_stops_rising(rates, users) -> None:
    """
    The knee is the last concurrency that brought five per cent more in total.
    """
    assert knee(curve(*rates)) == users


def test_a_point_with_too_much_spread_is_marked() -> None:
    """
    Repeats that differ by more than a fifth make a point unsteady; the median still stands.
    """
    plan = make(slots=1, context=None, seed=1, lengths=(100,), concurrencies=(1,), repeats=3)
    samples = [
        Sample(n, "cold", Point(100, 1), n, (answer(1.0, 100, 1 / rate),))
        for n, rate in enumerate((50, 51, 70))
    ]

    (point,) = report(plan, samples).points
    assert point.unsteady
    assert point.decode_per_s is not None
    assert point.decode_per_s.value == pytest.approx(51, rel=0.02)
    assert not report(plan, samples[:2]).points[0].unsteady


def test_goodput_counts_requests_that_met_both_targets() -> None:
    """
    A request that is late with its first token, or slow after it, is finished but not good.
    """
    plan = make(
        slots=1, context=None, seed=1, lengths=(100,), concurrencies=(3,), repeats=1,
        ttft_target_s=2.0, tpot_target_s=0.05,
    )  # fmt: skip
    answers = (answer(1.0, 51, 0.02), answer(3.0, 51, 0.02), answer(1.0, 51, 0.08))

    (point,) = report(plan, [Sample(1, "cold", Point(100, 3), 0, answers)]).points
    assert point.goodput_per_s == pytest.approx(1 / 5)


def test_first_and_warm_requests_are_reported_apart() -> None:
    """
    The first request after load and the warm prefix never enter a rate.
    """
    plan = make(slots=1, context=None, seed=1, lengths=(100,), concurrencies=(1,), repeats=1)
    samples = [
        Sample(0, "first", Point(100, 1), 0, (answer(9.0, 100, 0.5),)),
        Sample(1, "cold", Point(100, 1), 0, (answer(1.0, 100, 0.02),)),
        Sample(2, "warm", Point(100, 1), 0, (Answer(100, 99, 2, 0.1, 0.2, (0.1, 0.2)),)),
    ]

    found = report(plan, samples)
    assert found.first_request["ttft_s"] == 9.0
    assert found.warm_prefix == {"ttft_s": 0.1, "prompt_tokens": 100, "cached_tokens": 99}
    assert found.points[0].ttft_p50_s == 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(1487.0, "1,500"), (25.4, "25"), (9.87, "9.9"), (100.0, "100"), (0.5, "0.5")],
)
def test_numbers_for_people_have_two_digits(value: float, text: str) -> None:
    """
    More digits than the spread deserves would be a lie.
    """
    assert rounded(value) == text


def test_the_sentence_is_the_one_people_plan_by() -> None:
    """
    Total, users and each one's part, or nothing when nothing was measured.
    """
    assert sentence(1487.0, 8, 25.4) == (
        "Serves about 1,500 tokens per second in total; at 8 concurrent users expect about 25 each."
    )
    assert sentence(None, None, None) == ""


# Fingerprints


def facts(**settings: str) -> EngineFacts:
    """Return what an engine reveals."""
    return EngineFacts("llamacpp", "b1", "m", ("m",), 4, 2048, "Q4", 7, (), settings)


def test_a_lost_setting_is_another_fingerprint_and_shown() -> None:
    """
    One setting that went missing makes another fingerprint, and the difference names it.
    """
    before = fingerprint(facts(speculative="draft"), slots=4, card="A", sharing_mode="shared")
    after = fingerprint(facts(), slots=4, card="A", sharing_mode="shared")

    assert digest(before) != digest(after)
    assert diff(before, after) == (Difference("setting.speculative", "draft", None),)


def test_a_neighbours_load_is_part_of_the_fingerprint() -> None:
    """
    An idle co-resident and an active one are different conditions, and order does not matter.
    """
    idle, active = CoResident("b", "idle"), CoResident("b", "active")
    c = CoResident("c", "idle")

    assert digest(fingerprint(facts(), slots=4, co_residents=[idle])) != digest(
        fingerprint(facts(), slots=4, co_residents=[active])
    )
    assert digest(fingerprint(facts(), slots=4, co_residents=[idle, c])) == digest(
        fingerprint(facts(), slots=4, co_residents=[c, idle])
    )
