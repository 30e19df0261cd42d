"""The table of docs/scheduler.md: what each rule is worth, on one trace per seed.

Eight slots, exponential service of ten seconds, two hours; interactive caps are lifted so that
only the order between the classes is seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from gateway.core import sharing
from gateway.ledger.simulation import Policy, Result, Simulation
from gateway.ledger.state import BATCH, INTERACTIVE
from gateway.ledger.trace import Arrival, Backlog, backlog, poisson

SLOTS, SERVICE_S, HOURS_S, USERS = 8, 10.0, 7_200.0, 20
HOG = "hog"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table."""

    name: str
    load: float
    policy: Policy
    batch_lines: int = 1000
    batch_users: int = 1
    hog_queues: int = 0  # requests one interactive user sends at once

    def run(self, seed: int, until_s: float = HOURS_S) -> Result:
        """Play the row; the same seed gives the same arrivals in every row of its load."""
        arrivals: list[Arrival] = poisson(
            random.Random(seed),  # noqa: S311  (to be repeatable, not secret)
            self.load,
            until_s,
            slots=SLOTS,
            service_s=SERVICE_S,
            users=USERS,
        )
        rng = random.Random(seed + 1_000)  # noqa: S311
        jobs: list[Backlog] = [
            backlog(rng, f"batch{n}", self.batch_lines // self.batch_users, SERVICE_S)
            for n in range(self.batch_users)
            if self.batch_lines
        ]
        arrivals += [
            Arrival(600_000, HOG, INTERACTIVE, round(rng.expovariate(1 / SERVICE_S) * 1000) + 1)
            for _ in range(self.hog_queues)
        ]
        return Simulation(arrivals, jobs, self.policy).run(until_s)


OPEN = Policy(slots=SLOTS, key_cap=SLOTS, user_cap=SLOTS)


def table() -> Iterator[Scenario]:
    """Yield the rows in the order of the document."""
    fixed = replace(OPEN, batch_slots=3, batch_cap=3)
    yield Scenario("no batch at all", 0.9, OPEN, batch_lines=0)
    yield Scenario("the rules as they are, B = 2", 0.9, OPEN)
    yield Scenario("the same, B = 1", 0.9, replace(OPEN, batch_slots=1))
    yield Scenario("the same, B = 3", 0.9, fixed)
    yield Scenario("the same, B = 6", 0.9, replace(OPEN, batch_slots=6, batch_cap=6))
    yield Scenario("the same, ten batch users", 0.9, OPEN, batch_users=10)
    yield Scenario(
        "every queued ticket ages, B = 3", 0.9, replace(fixed, feeds=False, accrual_window=False)
    )
    yield Scenario("no handicap, B = 2", 0.9, replace(OPEN, handicap_ms=0))
    yield Scenario("interactive load 30 %", 0.3, OPEN)
    yield Scenario("interactive load 112 %", 1.12, OPEN)
    yield Scenario("one person queues 300, load 80 %", 0.8, OPEN, batch_lines=0, hog_queues=300)


def returning(seed: int, until_s: float = HOURS_S) -> Result:
    """Return what becomes of clients refused for a full queue that come back when told to."""
    policy = replace(Policy(slots=SLOTS), queued_per_key=4)
    scenario = Scenario("returning clients", 1.1, policy, batch_lines=0)
    return scenario.run(seed, until_s)


def judge(seed: int, until_s: float = HOURS_S) -> dict[str, float]:
    """Return what the statements of docs/scheduler.md §9 come to on one seed."""

    def run(load: float, batch_lines: int = 1_000, hog_queues: int = 0) -> Result:
        scenario = Scenario("", load, OPEN, batch_lines=batch_lines, hog_queues=hog_queues)
        return scenario.run(seed, until_s)

    alone, beside = run(0.9, batch_lines=0), run(0.9)
    hog, without = run(0.8, batch_lines=0, hog_queues=300), run(0.8, batch_lines=0)
    quiet, flooded = run(0.3, batch_lines=10_000), run(1.12)
    came_back = returning(seed, until_s).returns
    batch_slots = sharing.batch_slots(None, None, SLOTS, lent=False)
    return {
        "p95 of chats beside a job of 1,000 lines / without": _p95(beside) / _p95(alone),
        "p95 of the others beside 300 queued, seconds": hog.others(HOG)[1],
        "  without those 300": _p95(without),
        "batch's two slots in use at load 30 % (over 1: lent ones too)": sum(quiet.seconds[BATCH])
        / (batch_slots * until_s),
        "  p95 of the chats beside it, seconds": _p95(quiet),
        "batch lines ended at load 112 %": float(flooded.done[BATCH]),
        "part admitted at its return after Retry-After": _admitted(came_back),
        "  part of that time its place had been free (median)": _free(came_back),
    }


def _p95(result: Result) -> float:
    return result.line(INTERACTIVE)[1]


def _admitted(returns: list[tuple[int, int | None, bool]]) -> float:
    return sum(admitted for _, _, admitted in returns) / max(1, len(returns))


def _free(returns: list[tuple[int, int | None, bool]]) -> float:
    return median(max(0, free_ms or 0) / retry_ms for retry_ms, free_ms, _ in returns)
