"""Judges from a history of samples how full a pool is, why, and what would help.

Rule 1: no clock and no I/O; every sample carries its own time.
Rule 2: what is missing is unknown; an unknown sample is never counted as a quiet one.
Rule 3: own caps and the batch pool never make a pool saturated: they are policy, not shortage.
Rule 4: up at once when a condition holds, down only after half an hour below half of it, so that
the word does not flicker.
Rule 5: the classes are judged apart. Batch that waits all night is what batch is for.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.types import Blocker, ServiceClass, Standing

SAMPLE_S = 5.0
UNKNOWN_AFTER_S = 15.0
BUSY_WINDOW_S = 300.0
SATURATED_WINDOW_S = 1800.0
OVERLOADED_WINDOW_S = 7200.0
LEAVE_AFTER_S = 1800.0
BUSY_RATIO = 0.25
SATURATED_RATIO = 2.0
OVERLOADED_RATIO = 4.0
SHARE = 0.8
WAIT_P95_S = 10.0
SHORTAGE = frozenset({Blocker.SLOTS, Blocker.PREFILL, Blocker.KV})


class Word(StrEnum):
    """The verdict in one word."""

    UNKNOWN = "unknown"
    DOWN = "down"
    OK = "ok"
    BUSY = "busy"
    SATURATED = "saturated"
    OVERLOADED = "overloaded"


LEVELS = (Word.OK, Word.BUSY, Word.SATURATED, Word.OVERLOADED)


@dataclass(frozen=True, slots=True)
class Sample:
    """One class of one pool at one moment."""

    at_s: float
    running: int | None  # sequences in flight in the pool, both classes; None: unknown
    waiting: Mapping[Blocker, int] = field(default_factory=dict)
    waits_s: tuple[float, ...] = ()  # queue waits of what started since the last sample

    @property
    def ratio(self) -> float | None:
        """Return waiting for want of capacity per running, or unknown."""
        if self.running is None:
            return None
        short = sum(count for blocker, count in self.waiting.items() if blocker in SHORTAGE)
        return short / max(self.running, 1)

    @property
    def is_down(self) -> bool:
        """Tell whether somebody waits and nothing but an engine is missing."""
        waiting = {blocker for blocker, count in self.waiting.items() if count}
        return waiting == {Blocker.NO_REPLICA}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one class of one pool at one moment."""

    word: Word
    since_s: float  # when the word became true
    cause: Blocker | None = None  # what most of the waiting is for, over the word's own window
    ratio: float | None = None  # waiting per running, now


def attribute(queued: Iterable[Standing]) -> dict[tuple[str, ServiceClass, Blocker], int]:
    """Count the waiting tickets by pool, class and blocker; each ticket counts exactly once."""
    counts: dict[tuple[str, ServiceClass, Blocker], int] = {}
    for ticket in queued:
        where = (ticket.pool, ticket.service_class, ticket.blocker)
        counts[where] = counts.get(where, 0) + 1
    return counts


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value that `share` of the values do not exceed, or None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


class Window:
    """The samples of the last so many seconds, with their sums kept up to date."""

    def __init__(self, length_s: float, ratio: float) -> None:
        self.length_s = length_s
        self.waits_s: list[float] = []  # in order
        self._ratio = ratio
        self._samples: deque[Sample] = deque()
        self._first_s: float | None = None  # of the very first sample ever
        self._reached = 0  # samples at or above the ratio
        self._waiting: dict[Blocker, int] = {}  # sums over the window

    def add(self, sample: Sample) -> None:
        """Take in a sample and let go of those that became too old."""
        if self._first_s is None:
            self._first_s = sample.at_s
        self._samples.append(sample)
        self._count(sample, 1)
        for wait_s in sample.waits_s:
            insort(self.waits_s, wait_s)
        while self._samples[0].at_s <= sample.at_s - self.length_s:
            old = self._samples.popleft()
            self._count(old, -1)
            for wait_s in old.waits_s:
                del self.waits_s[bisect_left(self.waits_s, wait_s)]

    def _count(self, sample: Sample, sign: int) -> None:
        ratio = sample.ratio
        self._reached += sign * (ratio is not None and ratio >= self._ratio)
        for blocker, count in sample.waiting.items():
            self._waiting[blocker] = self._waiting.get(blocker, 0) + sign * count

    @property
    def is_covered(self) -> bool:
        """Tell whether somebody watched since the window's beginning."""
        last_s = self._samples[-1].at_s
        return self._first_s is not None and self._first_s <= last_s - self.length_s + SAMPLE_S

    @property
    def is_exceeded(self) -> bool:
        """Tell whether most of the whole window reached the ratio; unknown samples did not."""
        expected = max(len(self._samples), self.length_s / SAMPLE_S)
        return self.is_covered and self._reached >= SHARE * expected

    @property
    def median(self) -> float | None:
        """Return the median ratio of the known samples."""
        return percentile([s.ratio for s in self._samples if s.ratio is not None], 0.5)

    @property
    def wait_p95_s(self) -> float | None:
        """Return the 95th percentile of the queue waits, None of none."""
        return percentile(self.waits_s, 0.95)

    @property
    def cause(self) -> Blocker | None:
        """Return the shortage that most of the waiting was for."""
        short = {b: count for b, count in self._waiting.items() if b in SHORTAGE and count > 0}
        return max(short, key=lambda b: (short[b], b), default=None)


class Judge:
    """Judges one class of one pool, sample by sample; batch is never more than busy."""

    def __init__(self, service_class: ServiceClass = ServiceClass.INTERACTIVE) -> None:
        self._is_interactive = service_class is ServiceClass.INTERACTIVE
        self._short = Window(BUSY_WINDOW_S, BUSY_RATIO)
        self._half_hour = Window(SATURATED_WINDOW_S, SATURATED_RATIO)
        self._two_hours = Window(OVERLOADED_WINDOW_S, OVERLOADED_RATIO)
        self._last: Sample | None = None
        self._level = Word.OK
        self._level_since_s = 0.0
        self._below_since_s: float | None = None
        self._odd: tuple[Word, float] | None = None  # unknown or down, and since when

    def add(self, sample: Sample) -> Verdict:
        """Take in one more sample and judge."""
        if self._last is None:
            self._level_since_s = sample.at_s
        elif sample.at_s - self._last.at_s > UNKNOWN_AFTER_S:
            self._below_since_s = None  # nobody watched: the quiet half hour begins anew
        self._last = sample
        for window in (self._short, self._half_hour, self._two_hours):
            window.add(sample)
        if sample.running is None:
            self._note_odd(Word.UNKNOWN, sample.at_s)
        elif sample.is_down:
            self._note_odd(Word.DOWN, sample.at_s)
        else:
            self._odd = None
            self._move(sample.at_s)
        return self._spoken(sample)

    def at(self, now_s: float) -> Verdict:
        """Return the verdict at a moment without a new sample: unknown after fifteen seconds."""
        if self._last is None:
            return Verdict(Word.UNKNOWN, now_s)
        if now_s - self._last.at_s > UNKNOWN_AFTER_S:
            return Verdict(Word.UNKNOWN, self._last.at_s)
        return self._spoken(self._last)

    def _note_odd(self, word: Word, now_s: float) -> None:
        if self._odd is None or self._odd[0] is not word:
            self._odd = (word, now_s)

    def _spoken(self, sample: Sample) -> Verdict:
        if self._odd is not None:
            word, since_s = self._odd
            cause = Blocker.NO_REPLICA if word is Word.DOWN else None
            return Verdict(word, since_s, cause, sample.ratio)
        windows = {
            Word.BUSY: self._short,
            Word.SATURATED: self._half_hour,
            Word.OVERLOADED: self._two_hours,
        }
        window = windows.get(self._level)
        cause = window.cause if window else None
        return Verdict(self._level, self._level_since_s, cause, sample.ratio)

    def _move(self, now_s: float) -> None:
        """Go up at once; go down when half an hour was below half of the level's threshold."""
        reached = self._reached()
        if LEVELS.index(reached) > LEVELS.index(self._level):
            self._level, self._level_since_s, self._below_since_s = reached, now_s, None
            return
        if self._level is Word.OK:
            return
        if not self._is_below_half():
            self._below_since_s = None
            return
        if self._below_since_s is None:
            self._below_since_s = now_s
        if now_s - self._below_since_s >= LEAVE_AFTER_S:
            self._level, self._level_since_s, self._below_since_s = reached, now_s, None

    def _reached(self) -> Word:
        """Return the highest level whose condition holds now."""
        if self._is_interactive:
            if self._two_hours.is_exceeded:
                return Word.OVERLOADED
            if self._half_hour.is_exceeded or self._waits_long():
                return Word.SATURATED
        median = self._short.median
        return Word.BUSY if median is not None and median >= BUSY_RATIO else Word.OK

    def _waits_long(self) -> bool:
        p95_s = self._half_hour.wait_p95_s if self._half_hour.is_covered else None
        return p95_s is not None and p95_s > WAIT_P95_S

    def _is_below_half(self) -> bool:
        """Tell whether the last minutes lie below half of the present level's threshold."""
        ratio = self._short.median or 0.0
        if self._level is Word.BUSY:
            return ratio < BUSY_RATIO / 2
        if self._level is Word.OVERLOADED:
            return ratio < OVERLOADED_RATIO / 2
        wait_s = self._short.wait_p95_s
        return ratio < SATURATED_RATIO / 2 and (wait_s is None or wait_s < WAIT_P95_S / 2)
