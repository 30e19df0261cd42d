"""Turns counters into rates and notices restarts; a rate is never negative and never invented.

Rule 1: a rate needs two readings of the same incarnation.
Rule 2: a counter that went down, or another incarnation, is a restart: everything before it is
forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.engines.base import EngineReading

WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates over the window; None is unknown."""

    tokens_in_per_s: float | None = None
    tokens_out_per_s: float | None = None
    prefix_hit_rate: float | None = None
    preemptions: int | None = None  # in the window


class Counters:
    """The readings of one replica within the window."""

    def __init__(self) -> None:
        self.restarts = 0
        self._kept: deque[tuple[float, EngineReading]] = deque()

    def add(self, now_s: float, reading: EngineReading) -> bool:
        """Keep a reading; return True when it shows that the engine was restarted."""
        restarted = bool(self._kept) and _is_restart(self._kept[-1][1], reading)
        if restarted:
            self._kept.clear()
            self.restarts += 1
        self._kept.append((now_s, reading))
        # The oldest kept reading is the last one outside the window, so that it is covered whole.
        while len(self._kept) > 2 and self._kept[1][0] <= now_s - WINDOW_S:
            self._kept.popleft()
        return restarted

    def forget(self) -> None:
        """Forget everything: the engine has been silent for too long."""
        self._kept.clear()

    def rates(self) -> Rates:
        """Return the rates between the oldest and the newest kept reading."""
        if len(self._kept) < 2:
            return Rates()
        (begin_s, old), (end_s, new) = self._kept[0], self._kept[-1]
        span_s = end_s - begin_s
        if span_s <= 0:
            return Rates()
        prompt = _grown(old.prompt_tokens_total, new.prompt_tokens_total)
        completion = _grown(_made(old), _made(new))
        queries = _grown(old.prefix_queries_total, new.prefix_queries_total)
        hits = _grown(old.prefix_hits_total, new.prefix_hits_total)
        return Rates(
            tokens_in_per_s=None if prompt is None else prompt / span_s,
            tokens_out_per_s=None if completion is None else completion / span_s,
            prefix_hit_rate=min(1.0, hits / queries) if queries and hits is not None else None,
            preemptions=_grown(old.preemptions_total, new.preemptions_total),
        )


def _made(reading: EngineReading) -> int | None:
    """Return all tokens made, those of requests that still run included where they are known."""
    if reading.completion_tokens_total is None:
        return None
    return reading.completion_tokens_total + (reading.completion_tokens_live or 0)


def _grown(old: int | None, new: int | None) -> int | None:
    """Return by how much a number grew; a request that was cut short may take some back."""
    if old is None or new is None:
        return None
    return max(0, new - old)


def _is_restart(old: EngineReading, new: EngineReading) -> bool:
    if old.incarnation and new.incarnation:
        return old.incarnation != new.incarnation
    pairs = (
        (old.prompt_tokens_total, new.prompt_tokens_total),
        (old.completion_tokens_total, new.completion_tokens_total),
        (old.preemptions_total, new.preemptions_total),
    )
    return any(a is not None and b is not None and b < a for a, b in pairs)
