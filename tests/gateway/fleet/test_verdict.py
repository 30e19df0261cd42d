"""The verdict and the capacity decision, over days of a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gateway.core.decision import Day, decide
from gateway.core.types import Blocker, ServiceClass, Standing
from gateway.core.verdict import Judge, Sample, Verdict, Word, attribute, percentile

MINUTE, HOUR = 60.0, 3600.0
SLOTS, PREFILL, KV = Blocker.SLOTS, Blocker.PREFILL, Blocker.KV


class Clock:
    """Feeds a judge one kind of sample every five seconds."""

    def __init__(self, service_class: ServiceClass = ServiceClass.INTERACTIVE) -> None:
        self.judge = Judge(service_class)
        self.now_s = 0.0

    def go(
        self,
        seconds: float,
        waiting: Mapping[Blocker, int] | None = None,
        *,
        running: int | None = 8,
        waits_s: tuple[float, ...] = (),
    ) -> Verdict:
        """Let the time pass with these samples; returns the last verdict."""
        end_s = self.now_s + seconds
        verdict = self.judge.at(self.now_s)
        while self.now_s < end_s:
            self.now_s += 5.0
            verdict = self.judge.add(Sample(self.now_s, running, waiting or {}, waits_s))
        return verdict


@pytest.mark.parametrize(
    ("minutes", "waiting", "word"),
    [
        (5, {SLOTS: 1}, Word.OK),
        (5, {SLOTS: 2}, Word.BUSY),
        (29, {SLOTS: 16}, Word.BUSY),
        (31, {SLOTS: 16}, Word.SATURATED),
        (31, {SLOTS: 15}, Word.BUSY),
        (31, {PREFILL: 8, KV: 8}, Word.SATURATED),
        (119, {SLOTS: 32}, Word.SATURATED),
        (121, {SLOTS: 32}, Word.OVERLOADED),
    ],
)
def test_each_word_has_its_ratio_and_its_time(
    minutes: float, waiting: dict[Blocker, int], word: Word
) -> None:
    """
    Busy from a quarter, saturated from 2 for half an hour, overloaded from 4 for two hours.
    """
    assert Clock().go(minutes * MINUTE, waiting).word is word


@pytest.mark.parametrize("blocker", [Blocker.OWN_CAP, Blocker.BATCH_POOL, Blocker.SCHEDULER])
def test_own_caps_are_nobodys_overload(blocker: Blocker) -> None:
    """
    A hundred requests that wait for their own cap leave the verdict at ok for hours.
    """
    assert Clock().go(6 * HOUR, {blocker: 100}).word is Word.OK


@pytest.mark.parametrize("blocker", [SLOTS, PREFILL, KV])
def test_the_cause_is_what_most_waiting_was_for(blocker: Blocker) -> None:
    """
    The verdict names the blocker that made it, not the one that is there at this moment.
    """
    clock = Clock()
    clock.go(2.5 * HOUR, {blocker: 30, Blocker.OWN_CAP: 90})
    other = SLOTS if blocker is not SLOTS else KV

    verdict = clock.go(10, {other: 40})

    assert (verdict.word, verdict.cause) == (Word.SATURATED, blocker) or (
        verdict.word,
        verdict.cause,
    ) == (Word.OVERLOADED, blocker)


def test_long_interactive_waits_saturate_without_a_long_queue() -> None:
    """
    p95 of the queue wait over 10 s for half an hour is saturation, whatever the ratio says.
    """
    assert Clock().go(31 * MINUTE, {SLOTS: 1}, waits_s=(1.0, 11.0)).word is Word.SATURATED
    assert Clock().go(31 * MINUTE, {SLOTS: 1}, waits_s=(1.0, 9.0)).word is Word.OK


def test_batch_that_waits_all_night_is_not_saturation() -> None:
    """
    A batch backlog is what batch is for: the class is judged apart and never beyond busy.
    """
    batch, interactive = Clock(ServiceClass.BATCH), Clock()

    assert batch.go(5 * HOUR, {SLOTS: 500}, waits_s=(3000.0,)).word is Word.BUSY
    assert interactive.go(5 * HOUR).word is Word.OK


def test_silence_is_unknown_and_the_first_good_sample_ends_it() -> None:
    """
    Fifteen seconds without a sample, or a missing number, is unknown; never the last word.
    """
    clock = Clock()
    clock.go(HOUR, {SLOTS: 16})
    assert clock.judge.at(clock.now_s + 15).word is Word.SATURATED
    assert clock.judge.at(clock.now_s + 16).word is Word.UNKNOWN
    assert clock.go(5, running=None).word is Word.UNKNOWN
    assert clock.go(5, {SLOTS: 16}).word is Word.SATURATED


def test_unknown_samples_never_make_a_pool_saturated() -> None:
    """
    A quarter of the window unknown leaves too few good samples for a verdict over it.
    """
    clock = Clock()
    for _ in range(90):
        clock.go(30, {SLOTS: 16})
        clock.go(10, running=None)

    assert clock.go(5, {SLOTS: 16}).word is Word.BUSY


def test_down_only_while_somebody_waits_for_an_engine_alone() -> None:
    """
    Everybody waits for an engine: down. One waits for a slot as well: not down.
    """
    clock = Clock()
    clock.go(MINUTE)
    down = clock.go(MINUTE, {Blocker.NO_REPLICA: 3}, running=0)

    assert (down.word, down.cause, down.since_s) == (Word.DOWN, Blocker.NO_REPLICA, 65.0)
    assert clock.go(5, {Blocker.NO_REPLICA: 3, SLOTS: 1}, running=8).word is Word.OK


def test_a_word_is_left_after_half_an_hour_below_half() -> None:
    """
    Saturated stays through half an hour below half its threshold, then falls to what holds.
    """
    clock = Clock()
    clock.go(HOUR, {SLOTS: 16})
    quiet = clock.go(29 * MINUTE)
    assert quiet.word is Word.SATURATED

    assert clock.go(10 * MINUTE).word is Word.OK


def test_flapping_changes_no_word() -> None:
    """
    Twenty quiet minutes after ten full ones, again and again, is one busy word, not a dozen.
    """
    clock = Clock()
    words = []
    for _ in range(6):
        words.append(clock.go(10 * MINUTE, {SLOTS: 3}).word)
        words.append(clock.go(20 * MINUTE).word)

    assert set(words) == {Word.BUSY}


def test_a_gap_begins_the_quiet_half_hour_anew() -> None:
    """
    Time that nobody watched does not count as quiet.
    """
    clock = Clock()
    clock.go(HOUR, {SLOTS: 16})
    clock.go(20 * MINUTE)
    clock.now_s += 20 * MINUTE

    assert clock.go(10 * MINUTE).word is Word.SATURATED


def standing(ticket: str, blocker: Blocker, kind: ServiceClass) -> Standing:
    """Return a waiting ticket."""
    return Standing(ticket, "k", "u", kind, "m", 1, 0, 0, 0, None, blocker, None)


def test_every_waiting_ticket_has_one_blocker() -> None:
    """
    The sums by pool, class and blocker add up to the queue, no ticket twice.
    """
    queued = [standing(f"{b}{c}", b, c) for b in Blocker for c in ServiceClass] * 2
    counts = attribute(queued)

    assert sum(counts.values()) == len(queued)
    assert set(counts.values()) == {2}


@pytest.mark.parametrize(
    ("values", "share", "value"),
    [([], 0.5, None), ([3], 0.95, 3), ([1, 2], 0.5, 1), (list(range(1, 101)), 0.95, 95)],
)
def test_percentiles_are_values_that_occurred(values, share, value) -> None:
    """
    A percentile is one of the values, the smallest that so many do not exceed.
    """
    assert percentile(values, share) == value


def week(count: int, blocker: Blocker = SLOTS, **facts: object) -> list[Day]:
    """Return seven days, the last `count` saturated by this blocker."""
    return [
        Day(
            f"2026-11-{20 + day}",
            saturated=day >= 7 - count,
            waited_s={blocker: 3600.0} if day >= 7 - count else {},
            **facts,
        )
        for day in range(7)
    ]


def test_three_days_of_seven_or_one_overload_ask_for_a_decision() -> None:
    """
    Two saturated days ask for none, three do, and so does a single overloaded one.
    """
    assert decide(week(2), replicas=1, replica_tokens_per_s=1000) is None
    assert decide(week(3), replicas=1, replica_tokens_per_s=1000) is not None
    once = [Day("2026-11-20", overloaded=True, waited_s={SLOTS: 10.0})]
    assert decide(once, replicas=1, replica_tokens_per_s=1000) is not None


def test_a_bad_week_without_any_waiting_on_record_decides_nothing() -> None:
    """
    Without knowing what was waited for there is nothing to advise.
    """
    days = [Day(f"2026-11-2{n}", saturated=True, waited_s={SLOTS: 0.0}) for n in range(4)]

    assert decide(days, replicas=1, replica_tokens_per_s=1000) is None


def test_days_older_than_a_week_do_not_count() -> None:
    """
    Three bad days before seven good ones are history.
    """
    old = [Day(f"2026-11-0{d}", saturated=True, waited_s={SLOTS: 9.0}) for d in range(1, 4)]

    assert decide([*old, *week(0)], replicas=1, replica_tokens_per_s=1000) is None


@pytest.mark.parametrize(
    ("days", "blocker", "words", "needed"),
    [
        (week(3, kv_usage=0.5), SLOTS, "Raise the slots", None),
        (week(3, KV), KV, "more memory", None),
        (week(3, SLOTS, preemptions=4), SLOTS, "more memory", None),
        (week(3, PREFILL), PREFILL, "second replica", 2),
        (week(3, Blocker.OWN_CAP), Blocker.OWN_CAP, "Not hardware", None),
        (week(3, Blocker.BATCH_POOL), Blocker.BATCH_POOL, "Not hardware", None),
        (week(3, Blocker.NO_REPLICA), Blocker.NO_REPLICA, "Keep the engines up", None),
        (week(3, SLOTS, kv_usage=0.9, offered_tokens_per_s=2000.0), SLOTS, "Add 2 replica", 3),
        (week(3, SLOTS, kv_usage=0.9, offered_tokens_per_s=600.0), SLOTS, "suffice", 1),
        (week(3, SLOTS), SLOTS, "Another replica", None),
    ],
)
def test_each_cause_has_its_action(days, blocker, words, needed) -> None:
    """
    The action follows from the dominant blocker, and only shortage is a question of hardware.
    """
    decision = decide(days, replicas=1, replica_tokens_per_s=1000.0)

    assert decision is not None
    assert decision.blocker is blocker
    assert words in decision.action
    assert decision.replicas_needed == needed


def test_the_arithmetic_is_shown() -> None:
    """
    The record holds the numbers it was made of, so that anybody can check it.
    """
    days = week(4, SLOTS, kv_usage=0.9, offered_tokens_per_s=2000.0)
    decision = decide(days, replicas=1, replica_tokens_per_s=1000.0)

    assert decision is not None
    assert "2,000 tokens/s" in decision.arithmetic
    assert "0.7 x 1,000" in decision.arithmetic
    assert "100% of 4.0 hours" in decision.arithmetic
    assert decision.reason.startswith("Saturated on 4 of the last 7 days")


def lived(
    crowd: Sequence[Mapping[Blocker, int]], service_class: ServiceClass = ServiceClass.INTERACTIVE
) -> tuple[list[Day], set[Word]]:
    """Live through three days with these crowds for an hour each; returns them, and the words.

    A crowd is there for five minutes at a time, one after the other; then it is quiet.
    """
    clock, days, words = Clock(service_class), list[Day](), set[Word]()
    for number in range(3):
        waited: dict[Blocker, float] = {}
        seen: set[Word] = set()
        for turn in range(20):
            waiting = crowd[turn % len(crowd)] if turn < 12 else {}
            seen.add(clock.go(5 * MINUTE, waiting).word)
            for blocker, count in waiting.items():
                waited[blocker] = waited.get(blocker, 0.0) + count * 5 * MINUTE
        bad = Word.SATURATED in seen, Word.OVERLOADED in seen
        days.append(Day(f"2026-11-{20 + number}", any(bad), bad[1], waited, kv_usage=0.5))
        words |= seen
        clock.now_s += 22 * HOUR
    return days, words


@pytest.mark.parametrize(
    ("crowd", "cause", "words"),
    [
        ([{SLOTS: 20, Blocker.OWN_CAP: 5}], SLOTS, "Raise the slots"),
        ([{KV: 20, SLOTS: 4}], KV, "more memory"),
        ([{PREFILL: 20, SLOTS: 4}], PREFILL, "second replica"),
        ([{Blocker.OWN_CAP: 200}], None, ""),
        ([{SLOTS: 20}, {}], None, ""),  # flapping: half of the time nobody waits
    ],
)
def test_days_are_judged_by_what_held_in_them(
    crowd: list[dict[Blocker, int]], cause: Blocker | None, words: str
) -> None:
    """
    Over days of a moved clock each shortage that holds is saturation with its cause and action;
    own caps and a crowd that comes and goes are not.
    """
    days, seen = lived(crowd)
    decision = decide(days, replicas=1, replica_tokens_per_s=1000.0)

    assert (Word.SATURATED in seen) is (cause is not None)
    assert (decision.blocker if decision else None) is cause
    assert words in (decision.action if decision else "")


def test_batch_that_waits_for_days_is_never_saturation() -> None:
    """
    However much batch waits overnight, no day is saturated and nothing is decided.
    """
    days, seen = lived([{SLOTS: 500}], ServiceClass.BATCH)

    assert seen == {Word.OK, Word.BUSY}
    assert decide(days, replicas=1, replica_tokens_per_s=1000.0) is None
