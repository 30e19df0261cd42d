"""What a run measures, in which order, and with which prompts; no I/O, no clock.

Rule 1: every prompt begins as no other does, so that no cache can answer.
Rule 2: points are interleaved and their order turns round each time, so that a card that grows
warm or a neighbour that wakes up hits all of them alike instead of one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (128, 2048, 10_000)
REPEATS = 5
ANSWER_TOKENS = 128
ROOM = 32  # tokens a prompt may be longer than planned
# Words most tokenizers know as one token; a prompt is a random walk over them.
_TEXT = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work "
    "number night point home water room mother area money story fact month lot right study "
    "book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea kid body "
    "information back parent face others level office door health person art war history party"
)
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class Point:
    """One measured combination."""

    prompt_tokens: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Step:
    """One wave of requests that start together."""

    number: int  # 0 is the thrown-away first request
    kind: str  # first, cold, warm
    point: Point
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    lengths: tuple[int, ...]
    concurrencies: tuple[int, ...]
    repeats: int
    answer_tokens: int
    ttft_target_s: float
    tpot_target_s: float
    seed: int

    @property
    def points(self) -> tuple[Point, ...]:
        """Return every combination, short prompts first."""
        return tuple(Point(n, c) for n in self.lengths for c in self.concurrencies)


def make(
    *,
    slots: int,
    context: int | None,
    seed: int,
    lengths: Sequence[int] = LENGTHS,
    concurrencies: Sequence[int] = (),
    repeats: int = REPEATS,
    answer_tokens: int = ANSWER_TOKENS,
    ttft_target_s: float = 2.0,
    tpot_target_s: float = 0.1,
) -> Plan:
    """Return a plan that fits the engine: 1, 2, 4 … slots and one step beyond them.

    A length that does not fit the context with its answer is left out; when none fits, the
    longest that does takes their place.
    """
    limit = context - answer_tokens - ROOM if context else None
    fitting = sorted({n for n in lengths if limit is None or n <= limit})
    if not fitting and limit is not None:
        fitting = [max(8, limit)]
    return Plan(
        lengths=tuple(fitting),
        concurrencies=tuple(concurrencies) or ladder(slots),
        repeats=max(1, repeats),
        answer_tokens=max(2, answer_tokens),
        ttft_target_s=ttft_target_s,
        tpot_target_s=tpot_target_s,
        seed=seed,
    )


def ladder(slots: int) -> tuple[int, ...]:
    """Return 1, 2, 4 … up to the slots, the slots themselves, and one step beyond."""
    rungs = [1]
    while rungs[-1] * 2 < slots:
        rungs.append(rungs[-1] * 2)
    if slots > 1:
        rungs.append(slots)
    return (*rungs, rungs[-1] * 2)


def steps(plan: Plan) -> tuple[Step, ...]:
    """Return the steps in order: the first request, the interleaved waves, the warm prefixes."""
    found = [Step(0, "first", Point(plan.lengths[0], 1))]
    for repeat in range(plan.repeats):
        order = plan.points if repeat % 2 == 0 else plan.points[::-1]
        found += [
            Step(len(found) + place, "cold", point, repeat) for place, point in enumerate(order)
        ]
    longest = Point(plan.lengths[-1], 1)
    found += [Step(len(found) + n, "warm", longest, n) for n in range(min(2, plan.repeats))]
    return tuple(found)


class Prompts:
    """Makes prompts of about so many tokens; learns how many tokens its words really have."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (a plan must be repeatable)
        self._openings: set[str] = set()
        self._tokens_per_word = 1.1

    def make(self, tokens: int) -> str:
        """Return a new text of about this many tokens."""
        opening = self._opening()
        count = max(1, round(tokens / self._tokens_per_word) - 4)
        return " ".join([opening, *self._random.choices(WORDS, k=count)])

    def _opening(self) -> str:
        """Return a beginning that no other prompt of this run has."""
        while True:
            letters = "".join(self._random.choices("abcdefghijklmnopqrstuvwxyz", k=8))
            if letters[:4] not in self._openings:
                self._openings.add(letters[:4])
                return letters

    def learn(self, text: str, tokens: int) -> None:
        """Take in how many tokens the engine counted."""
        words = len(text.split())
        if tokens > 0 and words > 8:
            self._tokens_per_word = tokens / words


def duration_s(plan: Plan, prefill_per_s: float, decode_per_s: float) -> float:
    """Return how long a run may take, from rates that are guessed or known; for announcements."""
    total = 0.0
    for step in steps(plan):
        wave = step.point.concurrency
        total += wave * step.point.prompt_tokens / max(prefill_per_s, 1.0)
        total += wave * plan.answer_tokens / max(decode_per_s, 1.0) + 0.5
    return total
