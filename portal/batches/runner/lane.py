"""One person's jobs as a runner holds them: which is next, and how many lines are out."""

from __future__ import annotations

from dataclasses import dataclass, field

from portal.batches.runner.store import Work
from portal.batches.runner.window import Window


@dataclass(slots=True)
class LaneRun:
    """One person's jobs, held by this runner."""

    owner_id: int
    window: Window
    jobs: dict[int, Work] = field(default_factory=dict)  # that may have lines to send
    suspect_jobs: dict[int, Work] = field(default_factory=dict)  # all of them, at the last reading
    out: dict[int, int] = field(default_factory=dict)  # job -> its lines at the gateway
    jobs_read_s: float = -1e9
    idle_since_s: float | None = None

    def next_jobs(self, count: int) -> dict[int, int]:
        """Share `count` places between the jobs: the one with fewest lines out is next."""
        shares: dict[int, int] = {}
        for _ in range(count if self.jobs else 0):
            pk = min(self.jobs, key=lambda pk: (self.out.get(pk, 0) + shares.get(pk, 0), pk))
            shares[pk] = shares.get(pk, 0) + 1
        return shares
