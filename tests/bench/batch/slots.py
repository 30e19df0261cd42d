"""What batch slots beside chat are worth: the engine's use against the wait of those who chat.

Plays the real ledger under a virtual clock: chats arrive at random (Poisson) at 60 % of the slots,
services are exponential, one batch never ends. For each number of slots that batch may hold
meanwhile: the part of the engine in use, and the 95th percentile of the chats' waits, in services,
beside what both are without batch. Each figure is the median over the seeds.
"""

from __future__ import annotations

import argparse
import random
from statistics import median

from gateway.ledger.simulation import Policy, Result, Simulation
from gateway.ledger.state import BATCH, INTERACTIVE
from gateway.ledger.trace import backlog, poisson

LOAD, SERVICE_S, MANY = 0.6, 10.0, 40
USE, WAIT = 0.9, 1.5


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hours", type=float, default=4.0, help="simulated time of a run")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument(
        "--people", type=int, help="who chat, under the caps people have; many without any"
    )
    parser.add_argument("--batch-slots", type=int, nargs="+", default=[1, 2, 3, 4, 7])
    parser.add_argument(
        "--line", type=float, nargs="+", default=[1.0, 0.25], help="length of lines, in chats"
    )


def run(given: argparse.Namespace) -> int:
    """Print a table for each length of lines; 1 when no number of slots is as wanted."""
    seeds = range(1, given.seeds + 1)
    alone = [play(given, seed, 0, 1.0) for seed in seeds]
    before = median(one[1] for one in alone)
    print(f"{given.slots} slots, chats at {LOAD:.0%} of them; without batch: "
          f"use {median(one[0] for one in alone):.1%}, wait p95 {before:.2f} services")  # fmt: skip
    fits = False
    for line in given.line:
        print(f"lines {line:g} times as long as chats")
        for batch_slots in given.batch_slots:
            runs = [play(given, seed, batch_slots, line) for seed in seeds]
            use, wait = (median(one[n] for one in runs) for n in (0, 1))
            # Below a tenth of a service a wait is not felt, and a ratio to it says nothing.
            ratio = wait / max(before, 0.1)
            fits |= use >= USE and ratio <= WAIT
            print(f"  batch may hold {batch_slots}: use {use:.1%}, wait p95 {wait:.2f} services, "
                  f"{ratio:.2f} ×")  # fmt: skip
    return int(not fits)


def play(
    given: argparse.Namespace, seed: int, batch_slots: int, line: float
) -> tuple[float, float]:
    """Return the engine's use and the 95th percentile of the chats' waits, in services."""
    until_s = given.hours * 3600
    chats = poisson(
        random.Random(seed),
        LOAD,
        until_s,
        slots=given.slots,
        service_s=SERVICE_S,
        users=given.people or MANY,
    )
    count = round(batch_slots * until_s / (SERVICE_S * line) * 1.2)
    jobs = [backlog(random.Random(-seed), "job", count, SERVICE_S * line)] if batch_slots else []
    chat_cap = None if given.people else given.slots
    policy = Policy(
        slots=given.slots, key_cap=chat_cap, user_cap=chat_cap,
        batch_slots=batch_slots or None, batch_cap=batch_slots or None,
    )  # fmt: skip
    result = Simulation(chats, jobs, policy).run(until_s)
    return held_s(result) / given.slots / until_s, result.line(INTERACTIVE)[1] / SERVICE_S


def held_s(result: Result) -> float:
    """Return for how long slots were held in all."""
    return sum(result.seconds[INTERACTIVE]) + sum(result.seconds[BATCH])
