"""CPU per line over runner, gateway and checkpoint, on an engine that answers at once."""

from __future__ import annotations

import argparse
import time

from tests.bench.batch.stage import COUNTED, Stage, line, stage

GOAL_MS = 0.45
WARM = 500


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--lines", type=int, default=10_000)


def run(given: argparse.Namespace) -> int:
    """Measure one batch of short lines after a warm-up."""
    with stage(slots=64) as here:
        return measure(here, given.lines)


def measure(here: Stage, count: int) -> int:
    """Run a warm-up and then `count` lines; return 1 when the goal is missed."""
    api = here.batches(here.product.key("cost", "batch"))
    api.wait(api.submit(line(n, 4, "warm up") for n in range(WARM)), 60)
    file = api.upload(line(n, 4, "word " * 60) for n in range(count))
    time.sleep(1)
    before, began = here.all_cpu_s(), time.monotonic()
    batch = api.wait(str(api.create(file["id"])["id"]), 600, every_s=1.0)
    took = time.monotonic() - began
    after = here.all_cpu_s()
    assert batch["request_counts"]["completed"] == count, batch
    print(f"{count:,} lines in {took:.1f} s: {count / took:,.0f} lines/s")
    per_line = {part: 1000 * (after[part] - before[part]) / count for part in COUNTED}
    for part, ms in per_line.items():
        print(f"  {part:<9}{ms:.3f} ms of CPU per line")
    total = sum(per_line[part] for part in ("worker", "gateway", "postgres"))
    print(f"runner + gateway + checkpoint (PostgreSQL): {total:.3f} ms; goal {GOAL_MS}")
    return int(total > GOAL_MS)
