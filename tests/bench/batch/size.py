"""A very large batch: memory of portal and worker, growth of Valkey, time to the first result.

The engine answers at once and is idle. Memory is the most any one process ever held; growth of
Valkey is read all the while and its most counts. With --until N the run ends when N lines are
done: what is measured has happened by then, except for the result files.
"""

from __future__ import annotations

import argparse
import time

from tests.bench.batch.stage import ENDED, Stage, line, stage

MEMORY_MIB, REDIS_MIB, FIRST_S = 300, 20, 60


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--until", type=int, default=0, help="end after so many lines")


def run(given: argparse.Namespace) -> int:
    """Measure one large batch."""
    with stage(slots=64) as here:
        return measure(here, given.lines, given.megabytes, given.until or given.lines)


def measure(here: Stage, count: int, megabytes: int, until: int) -> int:
    """Upload, submit, watch; return 1 when a bound is passed."""
    api = here.batches(here.product.key("large", "batch"))
    api.wait(api.submit(line(n, 4, "warm up") for n in range(50)), 60)
    text = "word " * max(1, (megabytes * 1_000_000 // count - 150) // 5)
    redis_before = here.redis_mib()
    began = time.monotonic()
    file = api.upload(line(n, 4, text) for n in range(count))
    uploaded = time.monotonic()
    batch_id = str(api.create(file["id"])["id"])
    created = time.monotonic()
    print(f"{file['bytes'] / 1e6:.0f} MB, {count:,} lines: uploaded in {uploaded - began:.1f} s, "
          f"created in {created - uploaded:.1f} s")  # fmt: skip
    first_s, redis_most, done = 0.0, redis_before, 0
    while (batch := api.get(batch_id))["status"] not in ENDED and done < until:
        done = batch["request_counts"]["completed"]
        if done and not first_s:
            first_s = time.monotonic() - created
        redis_most = max(redis_most, here.redis_mib())
        time.sleep(0.2 if not first_s else 1.0)
    took = time.monotonic() - created
    done = batch["request_counts"]["completed"]
    print(f"{done:,} lines in {took:.0f} s: {done / took:,.0f} lines/s; {batch['status']}")
    return _verdict(here, first_s, redis_most - redis_before)


def _verdict(here: Stage, first_s: float, redis_growth: float) -> int:
    portal = max(here.memory_mib("portal", "VmHWM"))
    worker = max(here.memory_mib("worker", "VmHWM"))
    print(f"portal {portal:.0f} MiB, worker {worker:.0f} MiB at most; goal {MEMORY_MIB} each")
    print(f"Valkey grew by {redis_growth:.1f} MiB at most; goal {REDIS_MIB}")
    print(f"first result after {first_s:.1f} s; goal {FIRST_S}")
    fits = portal <= MEMORY_MIB and worker <= MEMORY_MIB and redis_growth <= REDIS_MIB
    return int(not (fits and 0 < first_s <= FIRST_S))
