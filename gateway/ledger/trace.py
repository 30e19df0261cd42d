"""What a simulation plays: requests as they come, and jobs as the batch runner feeds them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gateway.core.types import ServiceClass
from gateway.ledger.state import BATCH, INTERACTIVE


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it comes: when, whose, and how long it will hold its slot."""

    at_ms: int
    user: str
    service_class: ServiceClass
    service_ms: int
    prompt_tokens: int = 0
    output_tokens: int = 100
    read_ms: int | None = None  # how long its prompt is read; None: as long as its size says


@dataclass(frozen=True, slots=True)
class Backlog:
    """A batch job that the runner feeds: at most the accrual window waits beyond what runs."""

    user: str
    lines: tuple[Arrival, ...]
    at_ms: int = 0


def poisson(
    rng: random.Random, load: float, until_s: float, *, slots: int, service_s: float, users: int
) -> list[Arrival]:
    """Return interactive arrivals of many users, with exponential service."""
    arrivals: list[Arrival] = []
    rate, at_s = load * slots / service_s, 0.0
    while True:
        at_s += rng.expovariate(rate)
        if at_s >= until_s:
            return arrivals
        hold_ms = max(1, round(rng.expovariate(1 / service_s) * 1000))
        user = f"user{rng.randrange(users)}"
        arrivals.append(Arrival(round(at_s * 1000), user, INTERACTIVE, hold_ms))


def backlog(rng: random.Random, user: str, count: int, service_s: float) -> Backlog:
    """Return a job of so many lines with exponential service."""
    holds_ms = (max(1, round(rng.expovariate(1 / service_s) * 1000)) for _ in range(count))
    return Backlog(user, tuple(Arrival(0, user, BATCH, hold_ms) for hold_ms in holds_ms))
