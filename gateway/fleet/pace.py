"""Notices a replica that works far below its measured speed.

Rule 1: what the engine's counters did in the window is turned into the time it would have taken at
the measured rates. A healthy engine that is always busy needs about all of the window; one whose
layers are not on the GPU needs a twentieth.
Rule 2: only a busy engine is judged: one that idles half of the window has nothing to prove.
Rule 3: a prompt that is being read has not moved the counters yet, so while a long one is, nothing
is judged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.engines.base import EngineReading
from quotas.snapshots.measured import Measured

WINDOW_S = 60.0
MARGIN_S = 5.0  # a window may be a few probes short of its length
SLOW_SHARE = 0.25
FINE_SHARE = 0.5  # a slow replica is trusted again above this
BUSY_SHARE = 0.5
LONG_PREFILL_S = 15.0

HINTS = {
    "llamacpp": "are its layers on the GPU (-ngl)? Do other tenants use the card? Is it throttled?",
    "": "do other tenants use the card? Is it throttled? Was a setting lost?",
}


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    reading: EngineReading
    judged: bool


class Pace:
    """The speed of one replica over the last minute against what was measured."""

    def __init__(self) -> None:
        self.share: float | None = None  # of the measured speed; None: not judged
        self.is_slow = False
        self._looks: deque[_Look] = deque()

    def forget(self) -> None:
        """Begin anew: the engine was restarted or is another."""
        self._looks.clear()
        self.share, self.is_slow = None, False

    def add(
        self, now_s: float, reading: EngineReading, measured: Measured | None, prefill_s: float
    ) -> None:
        """Take in a reading; `prefill_s` is the longest prompt being read, estimated."""
        self._looks.append(_Look(now_s, reading, prefill_s < LONG_PREFILL_S))
        while len(self._looks) > 2 and self._looks[1].at_s <= now_s - WINDOW_S:
            self._looks.popleft()
        self.share = self._judge(measured) if measured else None
        if self.share is not None:
            self.is_slow = self.share < (FINE_SHARE if self.is_slow else SLOW_SHARE)

    def _judge(self, measured: Measured) -> float | None:
        first, last = self._looks[0], self._looks[-1]
        span_s = last.at_s - first.at_s
        if span_s < WINDOW_S - MARGIN_S or not all(look.judged for look in self._looks):
            return None
        running = [look.reading.running for look in self._looks]
        known = [count for count in running if count is not None]
        if not known:
            return None
        busy = sum(1 for count in known if count) / len(known)
        if busy < BUSY_SHARE:
            return None
        needed_s = _needed_s(first.reading, last.reading, measured, sum(known) / len(known) / busy)
        return None if needed_s is None else needed_s / (span_s * busy)

    def note(self, kind: str) -> str:
        """Say in plain words that it is slow and what that usually means."""
        if not self.is_slow or self.share is None:
            return ""
        hint = HINTS.get(kind, HINTS[""])
        return f"It works at {self.share:.0%} of its measured speed: {hint}"


def _needed_s(
    old: EngineReading, new: EngineReading, measured: Measured, running: float
) -> float | None:
    """Return how long the work between two readings takes at the measured rates."""
    read, written = _read(old, new), _written(old, new)
    if read is None and written is None:
        return None
    reading_s = (read or 0) / measured.prefill_per_s if measured.prefill_per_s > 0 else 0.0
    rate = measured.decode_at(running)
    return reading_s + ((written or 0) / rate if rate > 0 else 0.0)


def _read(old: EngineReading, new: EngineReading) -> int | None:
    if old.prompt_tokens_total is None or new.prompt_tokens_total is None:
        return None
    cached = (new.cached_tokens_total or 0) - (old.cached_tokens_total or 0)
    return max(0, new.prompt_tokens_total - old.prompt_tokens_total - cached)


def _written(old: EngineReading, new: EngineReading) -> int | None:
    if old.completion_tokens_total is None or new.completion_tokens_total is None:
        return None
    grown = new.completion_tokens_total - old.completion_tokens_total
    live = (new.completion_tokens_live or 0) - (old.completion_tokens_live or 0)
    return max(0, grown + live)
