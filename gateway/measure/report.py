"""Turns the raw samples of a run into figures with their spread, a knee and a sentence.

Rule 1: everything is computed from the raw samples again and again; nothing is adjusted.
Rule 2: prefill and decode are apart, because sharing a card harms them differently.
Rule 3: a figure carries its spread; a point with too much of it is marked, not smoothed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from gateway.core.verdict import percentile
from gateway.measure.plan import Plan, Point

UNSTEADY = 0.2  # (largest - smallest) / median of the repeats
STILL_RISES = 1.05  # the next concurrency must bring 5 % more to be worth it
FEW_TOGETHER = 0.25  # of a wave's decoding that must be common for the exact window


@dataclass(frozen=True, slots=True)
class Answer:
    """One request of a step; times are seconds since the step began."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    first_s: float  # the first content came
    ended_s: float
    content_s: tuple[float, ...]  # when each piece of content came; pieces are not tokens

    @property
    def tpot_s(self) -> float | None:
        """Return the seconds per token after the first."""
        if self.completion_tokens < 2:
            return None
        return (self.ended_s - self.first_s) / (self.completion_tokens - 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """One step as it went."""

    step: int
    kind: str
    point: Point
    repeat: int
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number with what the repeats say about it."""

    value: float  # median of the repeats
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Return the width of the repeats as a part of the value."""
        return (self.high - self.low) / self.value if self.value else 0.0


@dataclass(frozen=True, slots=True)
class PointReport:
    """What one combination of prompt length and concurrency gave."""

    prompt_tokens: int  # as the engine counted them, median
    planned_tokens: int
    concurrency: int
    repeats: int
    prefill_per_s: Figure | None  # prompt tokens per second, all requests together
    decode_per_s: Figure | None  # answer tokens per second, all requests together
    decode_per_user_per_s: Figure | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    goodput_per_s: float | None
    unsteady: bool

    def as_json(self) -> dict[str, Any]:
        """Return the point for storage and machines."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found."""

    points: tuple[PointReport, ...]
    knee: int | None  # the largest concurrency at which the total still rises
    peak_decode_per_s: float | None
    per_user_at_knee: float | None
    first_request: Mapping[str, float | None]  # thrown away, shown apart
    warm_prefix: Mapping[str, float | None]  # measured apart
    sentence: str

    def as_json(self) -> dict[str, Any]:
        """Return the report for storage and machines."""
        return {**asdict(self), "points": [point.as_json() for point in self.points]}


def prefill_rate(answers: Sequence[Answer]) -> float | None:
    """Return prompt tokens read per second while the wave's prompts were read."""
    read = sum(answer.prompt_tokens - (answer.cached_tokens or 0) for answer in answers)
    last_s = max((answer.first_s for answer in answers), default=0.0)
    return read / last_s if last_s > 0 else None


def decode_rate(answers: Sequence[Answer]) -> float | None:
    """Return answer tokens per second while all of the wave's answers were being written.

    Where they hardly overlap (more requests than slots), the rate is that of the whole span from
    the first token to the last.
    """
    writing = [answer for answer in answers if answer.completion_tokens > 1]
    if not writing:
        return None
    begin_s = max(answer.first_s for answer in writing)
    end_s = min(answer.ended_s for answer in writing)
    typical_s = median(answer.ended_s - answer.first_s for answer in writing)
    if end_s - begin_s < FEW_TOGETHER * typical_s:
        begin_s = min(answer.first_s for answer in writing)
        end_s = max(answer.ended_s for answer in writing)
    if end_s <= begin_s:
        return None
    return sum(_tokens_within(answer, begin_s, end_s) for answer in writing) / (end_s - begin_s)


def _tokens_within(answer: Answer, begin_s: float, end_s: float) -> float:
    """Return the tokens of an answer made from begin to end, pieces weighing alike.

    A piece was being made since the one before it; what lies partly inside counts in part, so that
    a window that cuts a piece in two loses nothing.
    """
    times = answer.content_s  # the first piece belongs to reading the prompt
    if len(times) < 2:
        return 0.0
    inside = sum(
        max(0.0, min(after_s, end_s) - max(before_s, begin_s)) / (after_s - before_s)
        if after_s > before_s
        else float(begin_s < after_s <= end_s)
        for before_s, after_s in pairwise(times)
    )
    return inside * (answer.completion_tokens - 1) / (len(times) - 1)


def _figure(values: Iterable[float | None]) -> Figure | None:
    known = [value for value in values if value is not None]
    return Figure(median(known), min(known), max(known)) if known else None


def goodput(samples: Sequence[Sample], plan: Plan) -> float | None:
    """Return finished requests per second that met both targets, over the point's waves."""
    span_s = sum(max((a.ended_s for a in s.answers), default=0.0) for s in samples)
    answers = [answer for sample in samples for answer in sample.answers]
    met = [
        answer
        for answer in answers
        if answer.first_s <= plan.ttft_target_s
        and (answer.tpot_s is None or answer.tpot_s <= plan.tpot_target_s)
    ]
    return len(met) / span_s if span_s > 0 else None


def point_report(point: Point, samples: Sequence[Sample], plan: Plan) -> PointReport:
    """Return the figures of one point."""
    answers = [answer for sample in samples for answer in sample.answers]
    prefill = _figure(prefill_rate(sample.answers) for sample in samples)
    decode = _figure(decode_rate(sample.answers) for sample in samples)
    per_user = _figure(
        median(1 / a.tpot_s for a in sample.answers if a.tpot_s)
        if any(a.tpot_s for a in sample.answers)
        else None
        for sample in samples
    )
    firsts = [answer.first_s for answer in answers]
    gaps = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    return PointReport(
        prompt_tokens=int(median(answer.prompt_tokens for answer in answers)) if answers else 0,
        planned_tokens=point.prompt_tokens,
        concurrency=point.concurrency,
        repeats=len(samples),
        prefill_per_s=prefill,
        decode_per_s=decode,
        decode_per_user_per_s=per_user,
        ttft_p50_s=percentile(firsts, 0.5),
        ttft_p95_s=percentile(firsts, 0.95),
        tpot_p50_s=percentile(gaps, 0.5),
        tpot_p95_s=percentile(gaps, 0.95),
        goodput_per_s=goodput(samples, plan),
        unsteady=any(f is not None and f.spread > UNSTEADY for f in (prefill, decode)),
    )


def knee(points: Sequence[PointReport]) -> int | None:
    """Return the largest concurrency at which the total decode rate still rises."""
    rising = sorted(
        (p.concurrency, p.decode_per_s.value) for p in points if p.decode_per_s is not None
    )
    if not rising:
        return None
    found, best = rising[0]
    for concurrency, rate in rising[1:]:
        if rate < STILL_RISES * best:
            break
        found, best = concurrency, rate
    return found


def report(plan: Plan, samples: Sequence[Sample]) -> Report:
    """Return everything that follows from the samples of a run, whole or partial."""
    cold = [sample for sample in samples if sample.kind == "cold"]
    points = tuple(
        point_report(point, mine, plan)
        for point in plan.points
        if (mine := [sample for sample in cold if sample.point == point])
    )
    short = [p for p in points if p.planned_tokens == plan.lengths[0]]
    bend = knee(short)
    at_knee = next((p for p in short if p.concurrency == bend), None)
    total = at_knee.decode_per_s.value if at_knee and at_knee.decode_per_s else None
    per_user = (
        at_knee.decode_per_user_per_s.value if at_knee and at_knee.decode_per_user_per_s else None
    )
    return Report(
        points=points,
        knee=bend,
        peak_decode_per_s=total,
        per_user_at_knee=per_user,
        first_request=_apart(samples, "first"),
        warm_prefix=_apart(samples, "warm"),
        sentence=sentence(total, bend, per_user),
    )


def _apart(samples: Sequence[Sample], kind: str) -> dict[str, float | None]:
    answers = [answer for sample in samples if sample.kind == kind for answer in sample.answers]
    if not answers:
        return {}
    cached = [a.cached_tokens for a in answers if a.cached_tokens is not None]
    return {
        "ttft_s": median(answer.first_s for answer in answers),
        "prompt_tokens": median(answer.prompt_tokens for answer in answers),
        "cached_tokens": median(cached) if cached else None,
    }


def sentence(total: float | None, concurrency: int | None, per_user: float | None) -> str:
    """Return the sentence for the status page, rounded to two digits as its spread deserves."""
    if total is None or concurrency is None or per_user is None:
        return ""
    users = "one user" if concurrency == 1 else f"{concurrency} concurrent users"
    each = "" if concurrency == 1 else " each"
    return (
        f"Serves about {rounded(total)} tokens per second in total; at {users} expect about "
        f"{rounded(per_user)}{each}."
    )


def rounded(value: float) -> str:
    """Return a number with two significant digits, with thousands apart."""
    if value >= 100:
        digits = len(str(int(value))) - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
