"""Rules that need no store: what an answer means, how many may wait, what is drawn."""

from __future__ import annotations

import datetime as dt
import random
from statistics import fmean

import orjson
import pytest

from portal.batches import drawing, estimate
from portal.batches.pace import Lengths, Sample, pace_from
from portal.batches.runner.verdict import Answer, Kind, error_line, judge, output_line
from portal.batches.runner.window import ACCRUAL, BURST, Window


def error(code: str, kind: str = "server_error") -> bytes:
    """Return the body of an error."""
    return orjson.dumps({"error": {"message": "no", "type": kind, "param": None, "code": code}})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(200, b'{"choices":[]}'), Kind.DONE),
        (Answer(400, error("prompt_too_long")), Kind.FAILED),
        (Answer(404, error("model_not_found")), Kind.FAILED),
        (Answer(403, error("forbidden")), Kind.FAILED),
        (Answer(413, b""), Kind.FAILED),
        (Answer(401, error("key_revoked")), Kind.PAUSE),
        (Answer(429, error("queue_full_key")), Kind.WAIT),
        (Answer(429, error("queue_timeout")), Kind.WAIT),
        (Answer(503, error("no_replica")), Kind.WAIT),
        (Answer(500, b"oops"), Kind.BROKE),
        (Answer(502, error("engine_failed")), Kind.BROKE),
        (Answer(504, error("engine_timeout")), Kind.BROKE),
        (Answer(0, reached=False), Kind.WAIT),
        (Answer(0, trouble="reset"), Kind.BROKE),
        # Kept alive by white space: 200 was sent before the failure was known.
        (Answer(200, b"  \n" + error("queue_timeout", "rate_limit_error")), Kind.WAIT),
        (Answer(200, b"  " + error("engine_failed")), Kind.BROKE),
        # Garbage is no answer, whatever status it came with.
        (Answer(200, b"{not json"), Kind.BROKE),
        (Answer(200, b"[1, 2]"), Kind.BROKE),
        (Answer(200, b'{"choices": "\xff"}'), Kind.BROKE),
    ],
)
def test_what_an_answer_means(answer: Answer, kind: Kind) -> None:
    """4xx is the line's own, 429 and 503 wait, what broke is charged, 401 pauses."""
    assert judge(answer).kind is kind


@pytest.mark.parametrize(("told", "waits"), [(None, 2.0), (0.0, 0.5), (7.0, 7.0), (9e9, 3600.0)])
def test_a_wait_is_as_long_as_told_within_bounds(told: float | None, waits: float) -> None:
    """Retry-After is obeyed; never a busy loop, never for ever."""
    assert judge(Answer(503, b"", retry_after_s=told)).wait_s == waits


def test_an_output_line_has_the_shape_of_openai() -> None:
    """id, custom_id, response with status, request id and body; error null."""
    verdict = judge(Answer(200, b'{"id":"x","choices":[]}', request_id="req_1"))
    row = orjson.loads(output_line("mine", verdict))

    assert row["id"].startswith("batch_req_")
    assert row["response"] == {
        "status_code": 200, "request_id": "req_1", "body": {"id": "x", "choices": []},
    }  # fmt: skip
    assert (row["custom_id"], row["error"]) == ("mine", None)


def test_the_same_seed_writes_the_same_bytes() -> None:
    """A result file written twice is the same file."""
    assert error_line("a", "c", "m", seed="1") == error_line("a", "c", "m", seed="1")
    assert error_line("a", "c", "m", seed="1") != error_line("a", "c", "m", seed="2")


@pytest.mark.parametrize(
    "body", [b'{"a":"\\ud83d"}', b'{"a":123456789012345678901234567890}', b'{"a":1.10}']
)
def test_odd_json_of_an_engine_is_kept(body: bytes) -> None:
    """Lone surrogates and huge numbers in an answer are stored, not lost."""
    line = output_line("odd", judge(Answer(200, body)))

    assert b"\n" not in line
    assert body[5:-1] in line


def test_at_most_two_lines_of_a_person_wait() -> None:
    """Room is what the gateway holds in flight and two more; each end lets one start."""
    window = Window(most=64)
    window.read(3, 0, 10.0)
    window.sent(window.room(10.0))
    assert (window.outstanding, window.room(10.1)) == (3 + ACCRUAL, 0)

    window.ended(1.0)
    assert window.room(10.2) == 1
    window.sent()
    window.read(5, 0, 10.5)  # those two were granted as well
    assert window.room(10.5) == ACCRUAL


def test_one_reading_between_two_lines_takes_no_room_away() -> None:
    """What is granted is the most seen lately, and a lasting loss is noticed."""
    window = Window(most=64)
    for in_flight, room in ((7, 9), (0, 9), (2, 9), (2, 4)):
        window.read(in_flight, 0, 1.0)
        window.line_s = 1.0
        window.burst = 0
        assert window.room(1.0) == room


def test_without_word_from_the_gateway_little_is_sent() -> None:
    """Unknown is the smallest limit there is, and an old reading is unknown."""
    window = Window(most=64)
    assert window.room(0.0) == 4
    window.read(9, 0, 0.0)
    assert window.room(1.0) == 11
    assert window.room(6.0) == 4


def test_jobs_ahead_delay_by_no_more_than_their_own_work() -> None:
    """Two jobs that take turns: the short one ends in at most twice its time alone."""
    alone = estimate.project(100.0, [], 2.0, 5.0)
    beside_long = estimate.project(100.0, [10_000.0], 2.0, 5.0)
    beside_short = estimate.project(100.0, [10.0], 2.0, 5.0)

    assert alone.end_s == 55.0
    assert beside_long.end_s == 105.0
    assert beside_short.end_s == 60.0
    assert alone.soonest_s < alone.end_s < alone.latest_s


def sample(**changes: object) -> Sample:
    """Return a request that wrote 100 tokens in two seconds after waiting one."""
    usual = {
        "user_id": 1, "service_class": "batch", "completion_tokens": 100, "duration_ms": 3000,
        "queue_wait_ms": 1000, "ttft_ms": 3000, "prompt_tokens": 50, "cached_tokens": None,
        "stream": False, "finish_reason": "stop",
    }  # fmt: skip
    return Sample(**(usual | changes))  # type: ignore[arg-type]


def test_plain_answers_to_like_prompts_say_nothing_of_reading() -> None:
    """Where prompts are alike the time a slot was held counts as writing; waiting never does."""
    pace = pace_from([sample()] * 3, owner_id=1)

    assert pace is not None
    assert (pace.prompt_token_s, pace.output_token_s) == (0.0, pytest.approx(0.02))


def test_a_stream_shows_when_its_prompt_was_read() -> None:
    """The time to the first token is reading, cached tokens apart."""
    pace = pace_from(
        [sample(stream=True, ttft_ms=2000, prompt_tokens=150, cached_tokens=50)], owner_id=1
    )

    assert pace is not None
    assert pace.prompt_token_s == pytest.approx(0.01)
    assert pace.output_token_s == pytest.approx(0.01)


def test_plain_answers_to_unlike_prompts_tell_reading_from_writing() -> None:
    """A tenth of a second each, a millisecond a token read, ten a token written are found again."""
    dice = random.Random(1)
    sizes = [(dice.randrange(20, 2000), dice.randrange(1, 200)) for _ in range(100)]
    pace = pace_from(
        [
            sample(prompt_tokens=read, completion_tokens=written, queue_wait_ms=0,
                   duration_ms=100 + read + 10 * written)
            for read, written in sizes
        ],
        owner_id=1,
    )  # fmt: skip

    assert pace is not None
    assert (pace.fixed_s, pace.prompt_token_s, pace.output_token_s) == pytest.approx(
        (0.1, 0.001, 0.01), rel=0.01
    )


def test_own_lines_tell_the_length_of_answers_better_than_others() -> None:
    """With enough lines of one's own, other people's chats no longer count."""
    others = [sample(user_id=2, completion_tokens=900)] * 20
    pace = pace_from([*others, *[sample(completion_tokens=30)] * 8], owner_id=1)

    assert pace is not None
    assert pace.lengths.mean() == pytest.approx(30)


@pytest.mark.parametrize("most", [None, 40, 60, 300])
def test_answers_that_were_cut_do_not_make_answers_short(most: int | None) -> None:
    """
    From answers of which half were cut at 60 tokens, the mean length under any limit is found as
    if none had been.
    """
    dice = random.Random(2)
    whole = [round(50 * dice.lognormvariate(0, 0.7)) for _ in range(4000)]
    seen = [(min(n, 60), n > 60) if i % 2 else (n, False) for i, n in enumerate(whole)]

    real = fmean(n if most is None else min(n, most) for n in whole)
    assert Lengths(seen).mean(most) == pytest.approx(real, rel=0.03)


def test_the_chart_fits_its_frame() -> None:
    """Every bar stays between the axis and the top, the highest near it."""
    now = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    picture = drawing.chart({0: 7, 23: 90}, now - dt.timedelta(hours=24), now)

    assert len(picture.bars) == drawing.BARS
    assert all(drawing.TOP_PX - 1 <= bar.y <= drawing.BASE_PX for bar in picture.bars)
    assert picture.bars[23].per_minute == 1.5
    assert picture.levels[-1][1] == "2"


def test_an_empty_gauge_is_empty() -> None:
    """No line at all divides by nothing."""
    assert drawing.gauge(0, 0, 0).done == 0.0


def test_words_of_an_engine_can_be_stored() -> None:
    """NUL and half characters in an error's text do not reach the database."""
    verdict = judge(Answer(400, b'{"error":{"message":"a\\u0000b\\ud83d","code":"\\u0000"}}'))

    assert (verdict.message, verdict.code) == ("ab?", "")


def test_quick_lines_may_burst_until_a_queue_shows() -> None:
    """Lines that end between two readings get more room step by step, and lose it at once."""
    window = Window(most=64)
    for reading in range(20):
        window.read(0, 0, reading * 0.4)
        count = window.room(reading * 0.4)
        window.sent(count)
        for _ in range(count):
            window.ended(0.01)
    assert count == ACCRUAL + BURST

    window.read(1, 3, 9.0)
    assert window.room(9.0) == 1 + ACCRUAL


def test_slow_lines_never_burst() -> None:
    """For lines that take their time two waiting ones are enough."""
    window = Window(most=64)
    for reading in range(20):
        window.read(4, 0, reading * 0.4)
        window.sent()
        window.ended(2.0)

    assert window.room(8.0) == 4 + ACCRUAL
