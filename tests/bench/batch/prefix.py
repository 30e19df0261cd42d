"""What running lines with the same beginning near each other is worth to a prefix cache.

The lines of several long system prompts come shuffled, as a file of mixed work has them; the
engine's cache holds a few of the prompts. The same file runs in our order and in the file's own.
"""

from __future__ import annotations

import argparse
import random
import time

from tests.bench.batch.stage import Batches, Stage, line, stage


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--held", type=int, default=8, help="prompts the cache holds")


def run(given: argparse.Namespace) -> int:
    """Measure both orders; return 1 when ours is no better."""
    times = {"token_s": 0.004, "prompt_token_s": 0.0001, "prefixes": given.held}
    with stage(slots=8, **times) as here:
        api = here.batches(here.product.key("prefix", "batch"))
        api.wait(api.submit([line(0, 4, "warm up")]), 60)
        dice = random.Random(3)
        rows = []
        for number in range(given.lines):
            name = dice.randrange(given.prompts)
            rows.append(line(number, 40, f"question {number}", f"rules {name} " + "word " * 1600))
        file_id = api.upload(rows)["id"]
        ours = timed(here, api, file_id, as_written=False)
        own = timed(here, api, file_id, as_written=True)
    print(f"our order {ours[0]:.1f} s, {ours[1]:.0%} of the prompts' beginnings cached; "
          f"the file's order {own[0]:.1f} s, {own[1]:.0%}")  # fmt: skip
    return int(ours[0] >= own[0])


def timed(here: Stage, api: Batches, file_id: str, *, as_written: bool) -> tuple[float, float]:
    """Return how long the lines took and which part of the system prompts the cache held."""
    before = here.engine.stats()
    if as_written:
        here.product.sql("UPDATE file_line SET prefix = line_no RETURNING 1")
    began = time.monotonic()
    batch = api.wait(str(api.create(file_id)["id"]), 300)
    took = time.monotonic() - began
    after = here.engine.stats()
    cached = (after["cached"] - before["cached"]) / (batch["request_counts"]["total"] * 2000)
    return took, cached
