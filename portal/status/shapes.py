"""What the pages are shown of one moment: pools, lanes, places, engines; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from portal.status import drawing
from quotas.snapshots.live import EngineLive

HANDICAP_S = 600.0  # BATCH_HANDICAP_S of the scheduler
VERDICTS = {
    "ok": "OK",
    "busy": "Busy",
    "saturated": "Saturated",
    "overloaded": "Overloaded",
    "down": "Down",
    "unknown": "Unknown",
}

# Waiting for each running at which the states begin; each takes a quarter of the scale.
SCALE = (0.0, 0.25, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Lane:
    """One slot of a pool and who holds it."""

    number: int
    holder: str  # interactive, batch, free, unknown
    letter: str = ""
    yours: bool = False
    running_s: float | None = None
    width: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """One waiting request in the table."""

    position: int
    service_class: str
    letter: str
    yours: bool
    key_id: str
    ticket_id: str
    queued_s: float
    head_start_s: float
    why: str
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How full a pool is for one class, judged over minutes and hours."""

    state: str
    since: datetime | None
    cause: str  # in words; "" when there is none
    ratio: float | None

    @property
    def word(self) -> str:
        """Return the state as its word."""
        return VERDICTS[self.state]

    @property
    def scale_x(self) -> float | None:
        """Return where the ratio stands on the scale of states, in per cent of its width."""
        if self.ratio is None:
            return None
        for place, (low, high) in enumerate(pairwise(SCALE)):
            if self.ratio < high:
                return round(25 * (place + (self.ratio - low) / (high - low)), 1)
        return 100.0


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One model now."""

    name: str
    engines: tuple[str, ...]
    state: str
    slots: int | None  # None: unknown
    held: dict[str, int]
    running: int  # requests in flight; slots held are more where one takes several
    waiting: dict[str, int]
    oldest_s: dict[str, float]  # the longest that anybody waits, by class
    wait_s: dict[str, float | None]
    people: int
    lanes: tuple[Lane, ...]
    lanes_more: int
    places: tuple[Place, ...]
    places_more: int
    marks: tuple[drawing.Mark, ...]
    batch_limit: int | None
    borrowed: bool
    verdicts: dict[str, Verdict]  # by class; empty: the gateway judges nothing yet
    blockers: dict[str, int]  # why those who wait now wait
    reasons: tuple[tuple[str, int], ...]  # the same in words, most of it first
    silent_since: datetime | None
    queue_known: bool  # False: who holds and who waits is unknown, not nobody
    is_measured: bool = False  # its engines serve nobody while their capacity is measured

    @property
    def word(self) -> str:
        """Return the state as its word."""
        return VERDICTS[self.state]

    @property
    def next(self) -> drawing.Mark | None:
        """Return the mark of the request that starts next, unless it hides in a crowd."""
        if not self.places or self.slots is None:
            return None
        first = self.places[0]
        x = drawing.water_x(first.head_start_s, HANDICAP_S)
        return next(
            (m for m in self.marks if m.x == x and m.service_class == first.service_class), None
        )

    @property
    def next_y(self) -> int:
        """Return the height of that mark's middle in the drawing."""
        mark = self.next
        return 214 if mark is None or mark.service_class == "batch" else (70, 117)[mark.row]

    @property
    def held_all(self) -> int:
        """Return the slots held by both classes."""
        return sum(self.held.values())

    @property
    def waiting_all(self) -> int:
        """Return the requests waiting in both classes."""
        return sum(self.waiting.values())


@dataclass(frozen=True, slots=True)
class Engine:
    """One row of the engines table; None is unknown."""

    live: EngineLive
    lamp: str
    running: int | None
    queued: int | None
    seen_at: datetime | None
    current: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything a page may show of this moment."""

    state: str
    sentence: str
    headline: str
    at: datetime | None  # when the numbers were true; None: there are none
    last_at: datetime | None
    pools: tuple[PoolReading, ...]
    engines: tuple[Engine, ...]
    strip: drawing.Strip | None
    strip_text: str
    queue_store: str  # "ok", or what is wrong with it
    queue_known: bool
    queue_at: datetime | None  # when queue and slots were last known
    worker_silent_since: datetime | None  # None: it reports, or nobody can say

    @property
    def word(self) -> str:
        """Return the verdict as its word."""
        return VERDICTS[self.state]
