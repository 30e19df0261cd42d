"""Decides whether a replica that failed may be tried again.

Rule 1: every change of state is a row of NEXT; what has no row changes nothing.
Rule 2: no clock. The caller hands in the time, in seconds of any steady clock.
Rule 3: only failures of the engine or of the way to it count. "Busy" (429, 503) is no failure, and
a client's mistake (4xx) is a success of the engine. But 401 is nobody's but ours: a client's key
goes to no engine, so it speaks of the engine's own.

    closed --5 failures in a row--> open --10 s, 20 s … 120 s--> half open --success--> closed
                                     ^                              |
                                     '---------- failure -----------'

Two good health probes close at once a breaker that connect errors or resets had opened: the way is
open again. A breaker opened by a stall or by errors of the engine asks for better proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

FAILURES_TO_OPEN = 5
FIRST_PERIOD_S = 10.0
LONGEST_PERIOD_S = 120.0
PROBES_TO_CLOSE = 2


class State(StrEnum):
    """Closed lets work through, open lets none, half open lets one request try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Event(StrEnum):
    """What happened to a request or a probe of the replica."""

    SUCCESS = "success"  # the engine answered, if only that the request was wrong
    UNREACHABLE = "unreachable"  # connect error, or reset before the first byte
    FAILURE = "failure"  # 5xx other than 503, broken stream
    KEY_REFUSED = "key_refused"  # 401: it asks for a key we have not got, or another one
    STALLED = "stalled"  # work in progress and no progress
    PROGRESS = "progress"  # bytes or counters moved
    PROBE_GOOD = "probe_good"
    PROBE_BAD = "probe_bad"


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker of one replica; immutable, `after` returns the next one."""

    state: State = State.CLOSED
    failures: int = 0  # in a row
    period_s: float = FIRST_PERIOD_S  # of the current or the next opening
    opened_s: float = 0.0
    cause: Event | None = None  # what opened it
    good_probes: int = 0  # in a row while open

    def at(self, now_s: float) -> Breaker:
        """Return the breaker as it is now: an open one becomes half open when its time is up."""
        if self.state is State.OPEN and now_s >= self.opened_s + self.period_s:
            return replace(self, state=State.HALF_OPEN)
        return self

    def after(self, event: Event, now_s: float) -> Breaker:
        """Return the breaker after the event."""
        current = self.at(now_s)
        step = NEXT.get((current.state, event))
        return step(current, event, now_s) if step else current


Step = Callable[[Breaker, Event, float], Breaker]


def _count(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    failures = breaker.failures + 1
    if failures >= FAILURES_TO_OPEN:
        return _open(replace(breaker, failures=failures), event, now_s)
    return replace(breaker, failures=failures)


def _forgive(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    return replace(breaker, failures=0) if breaker.failures else breaker


def _open(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    return replace(breaker, state=State.OPEN, opened_s=now_s, cause=event, good_probes=0)


def _reopen(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    longer = min(2 * breaker.period_s, LONGEST_PERIOD_S)
    return _open(replace(breaker, period_s=longer), event, now_s)


def _close(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    return Breaker()


def _probe_good(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    good = breaker.good_probes + 1
    if breaker.cause is Event.UNREACHABLE and good >= PROBES_TO_CLOSE:
        return Breaker()
    return replace(breaker, good_probes=good)


def _probe_bad(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    return replace(breaker, good_probes=0)


def _if_stalled(breaker: Breaker, event: Event, now_s: float) -> Breaker:
    return Breaker() if breaker.cause is Event.STALLED else breaker


NEXT: Mapping[tuple[State, Event], Step] = {
    (State.CLOSED, Event.SUCCESS): _forgive,
    (State.CLOSED, Event.UNREACHABLE): _count,
    (State.CLOSED, Event.FAILURE): _count,
    (State.CLOSED, Event.KEY_REFUSED): _count,
    (State.CLOSED, Event.STALLED): _open,
    (State.OPEN, Event.SUCCESS): _forgive,
    (State.OPEN, Event.PROGRESS): _if_stalled,
    (State.OPEN, Event.PROBE_GOOD): _probe_good,
    (State.OPEN, Event.PROBE_BAD): _probe_bad,
    (State.HALF_OPEN, Event.SUCCESS): _close,
    (State.HALF_OPEN, Event.UNREACHABLE): _reopen,
    (State.HALF_OPEN, Event.FAILURE): _reopen,
    (State.HALF_OPEN, Event.KEY_REFUSED): _reopen,
    (State.HALF_OPEN, Event.STALLED): _reopen,
    (State.HALF_OPEN, Event.PROGRESS): _if_stalled,
    (State.HALF_OPEN, Event.PROBE_GOOD): _probe_good,
    (State.HALF_OPEN, Event.PROBE_BAD): _probe_bad,
}


def of_status(status: int) -> Event | None:
    """Return what an HTTP status says about the replica; None for busy, which says nothing."""
    if status in (429, 503):
        return None
    if status == 401:
        return Event.KEY_REFUSED
    return Event.FAILURE if status >= 500 else Event.SUCCESS
