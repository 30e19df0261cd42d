"""Two owners: how long ten lines take beside another person's very long batch, against alone.

The engine has 8 slots and log-normal lines; the same ten lines run first on the idle engine, then
while the other person's lines fill it.
"""

from __future__ import annotations

import argparse
import time

from tests.bench.batch.stage import Batches, Stage, lengths, line, stage

GOAL = 2.0
SMALL = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--lines", type=int, default=50_000, help="of the other person")
    parser.add_argument("--line-s", type=float, default=1.0, help="median time of a line")
    parser.add_argument("--rounds", type=int, default=3)


def run(given: argparse.Namespace) -> int:
    """Measure alone and beside, several times."""
    with stage(slots=8, token_s=given.line_s / 50) as here:
        return measure(here, given.lines, given.rounds)


def measure(here: Stage, count: int, rounds: int) -> int:
    """Return 1 when the slowest round takes more than twice as long."""
    small = here.batches(here.product.key("small", "batch"))
    large = here.batches(here.product.key("large", "batch"))
    alone = [timed(small, seed) for seed in range(rounds)]
    long = large.submit(
        line(n, tokens, "word " * 60) for n, tokens in enumerate(lengths(count, 50, 0.6, 1))
    )
    give_up = time.monotonic() + 120
    while large.done(long) < 20 and time.monotonic() < give_up:
        time.sleep(0.5)
    beside = [timed(small, seed) for seed in range(rounds)]
    left = count - large.done(long)
    assert left > 0, "the long batch ended too early to be beside anything"
    ratios = [b / a for a, b in zip(alone, beside, strict=True)]
    for a, b, ratio in zip(alone, beside, ratios, strict=True):
        print(f"ten lines: alone {a:.1f} s, beside {count:,} {b:.1f} s: {ratio:.2f} ×")
    print(f"the long batch has {left:,} lines left; worst {max(ratios):.2f} ×, goal {GOAL} ×")
    return int(max(ratios) > GOAL)


def timed(api: Batches, seed: int) -> float:
    """Return how long ten lines take from submission to the end of the batch."""
    tokens = lengths(SMALL, 50, 0.6, 100 + seed)
    file = api.upload(line(n, count, "word " * 60) for n, count in enumerate(tokens))
    began = time.monotonic()
    api.wait(str(api.create(file["id"])["id"]), 300, every_s=0.1)
    return time.monotonic() - began
