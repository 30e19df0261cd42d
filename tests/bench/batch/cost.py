"""CPU per line over runner, gateway and checkpoint, on an engine that answers at once.

What the parts use while nothing happens is measured first and taken off: it is no line's cost. The
checkpoint is the CPU of the one PostgreSQL connection that stores answers and takes lines. What
the usage rows of the lines cost (writer, Valkey, the rest of PostgreSQL) stands beside.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.bench.batch.stage import COUNTED, TICK_S, Stage, line, stage

GOAL_MS = 0.45
WARM = 500
IDLE_S = 10.0
GLANCE_S = 0.05
CHECKPOINT = """
SELECT pid FROM pg_stat_activity
WHERE query LIKE '%batch_item AS item%' AND pid <> pg_backend_pid()
"""


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
    api.wait(api.submit(line(n, 4, "warm up") for n in range(WARM)), 120)
    file = api.upload(line(n, 4, "word " * 60) for n in range(count))
    time.sleep(12)  # until the sweeper has looked and the runner rests
    idle = here.all_cpu_s()
    time.sleep(IDLE_S)
    backends = {pid: backend_s(pid) for pid in here.pids("postgres")}
    before, began = here.all_cpu_s(), time.monotonic()
    idle_per_s = {part: (before[part] - idle[part]) / IDLE_S for part in COUNTED}
    batch_id = str(api.create(file["id"])["id"])
    connection = checkpoint_pid(here)
    while api.done(batch_id) < count * 0.95:
        time.sleep(0.5)
    checkpoint = backend_s(connection) - backends.get(connection, 0.0)
    batch = api.wait(batch_id, 600, every_s=0.5)
    took = time.monotonic() - began
    after = here.all_cpu_s()
    assert batch["request_counts"]["completed"] == count, batch
    print(f"{count:,} lines in {took:.1f} s: {count / took:,.0f} lines/s")
    per_line = {
        part: 1000 * (after[part] - before[part] - idle_per_s[part] * took) / count
        for part in COUNTED
    }
    per_line["checkpoint"] = 1000 * checkpoint / (count * 0.95)
    for part, ms in per_line.items():
        idle_ms = 1000 * idle_per_s.get(part, 0.0)
        print(f"  {part:<11}{ms:.3f} ms of CPU per line (idle {idle_ms:.0f} ms per s)")
    total = sum(per_line[part] for part in ("worker", "gateway", "checkpoint"))
    print(f"runner + gateway + checkpoint: {total:.3f} ms; goal {GOAL_MS}")
    return int(total > GOAL_MS)


def checkpoint_pid(here: Stage) -> int:
    """Return the connection that stores answers and takes lines: one owner has one runner.

    Between two turns it shows its COMMIT, so one look would often miss it.
    """
    while not (found := here.product.sql(CHECKPOINT)):
        time.sleep(GLANCE_S)
    return int(found[0][0])


def backend_s(pid: int) -> float:
    """Return the CPU time of a process of PostgreSQL."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:13]) * TICK_S
