"""One person's jobs as a runner holds them: which line is next, and how many to take ahead.

Lines are taken from the table a little ahead of their turn, so that the end of one lets the next
start at once and not a round trip to the database later. A little is what ends in `AHEAD_S`:
a line taken ahead is lost to nobody, but it stands before lines of jobs that come after it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from portal.batches.runner.store import Claimed, Work
from portal.batches.runner.window import Window

AHEAD_S = 0.25
AHEAD_MOST = 128


@dataclass(slots=True)
class LaneRun:
    """One person's jobs, held by this runner."""

    owner_id: int
    window: Window
    jobs: dict[int, Work] = field(default_factory=dict)  # that may have lines to take
    suspect_jobs: dict[int, Work] = field(default_factory=dict)  # all of them, at the last reading
    out: dict[int, int] = field(default_factory=dict)  # job -> its lines at the gateway
    ready: dict[int, deque[Claimed]] = field(default_factory=dict)  # taken, not sent yet
    idle_since_s: float | None = None
    per_s: float = 0.0  # lines that end, smoothed
    _ended: int = 0
    _counted_s: float = 0.0

    def read(self, jobs: list[Work]) -> list[Claimed]:
        """Note the jobs that may send now; return lines that must go back: their job may not."""
        self.jobs = {work.job_pk: work for work in jobs}
        self.suspect_jobs = dict(self.jobs)
        gone = [pk for pk in self.ready if pk not in self.jobs]
        return [line for pk in gone for line in self.ready.pop(pk)]

    def drop(self, job_pk: int) -> list[Claimed]:
        """Take no more lines of this job for now; return those that must go back."""
        self.jobs.pop(job_pk, None)
        return list(self.ready.pop(job_pk, ()))

    def wanted(self, now_s: float) -> dict[int, int]:
        """Return how many lines of each job to take: the job with fewest lines is next."""
        self._count(now_s)
        ahead = min(AHEAD_MOST, math.ceil(self.per_s * AHEAD_S))
        count = self.window.room(now_s) + ahead - self.held()
        shares: dict[int, int] = {}
        for _ in range(count if self.jobs else 0):
            pk = min(self.jobs, key=lambda pk: (self._of(pk) + shares.get(pk, 0), pk))
            shares[pk] = shares.get(pk, 0) + 1
        return shares

    def _of(self, pk: int) -> int:
        return self.out.get(pk, 0) + len(self.ready.get(pk, ()))

    def _count(self, now_s: float) -> None:
        span = now_s - self._counted_s
        if span >= AHEAD_S:
            self.per_s += 0.5 * (self._ended / span - self.per_s)
            self._ended, self._counted_s = 0, now_s

    def held(self) -> int:
        """Return how many lines are taken and not sent."""
        return sum(map(len, self.ready.values()))

    def keep(self, line: Claimed) -> None:
        """Put a line that was just taken in its place."""
        self.ready.setdefault(line.work.job_pk, deque()).append(line)

    def next_line(self) -> Claimed | None:
        """Return the line to send next: of the job with fewest lines at the gateway."""
        if not self.ready:
            return None
        pk = min(self.ready, key=lambda pk: (self.out.get(pk, 0), pk))
        line = self.ready[pk].popleft()
        if not self.ready[pk]:
            del self.ready[pk]
        return line

    def sent(self, line: Claimed) -> None:
        """Note a line at the gateway."""
        self.window.sent()
        self.out[line.work.job_pk] = self.out.get(line.work.job_pk, 0) + 1

    def ended(self, line: Claimed, after_s: float) -> None:
        """Note that it is there no more."""
        self.window.ended(after_s)
        self._ended += 1
        left = self.out[line.work.job_pk] - 1
        if left:
            self.out[line.work.job_pk] = left
        else:
            del self.out[line.work.job_pk]
