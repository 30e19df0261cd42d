"""Several real processes on one real Valkey, and what their notes say of caps and pauses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import redis

from gateway.core.types import ServiceClass
from gateway.ledger.redis import KEYS, RedisLedger
from quotas.snapshots.usage import STREAM
from tests.gateway.ledger import worker

ROOT = Path(__file__).resolve().parents[3]
Held = tuple[float, float, str, int, str]  # from, to, ticket, key, replica


def _spawn(url: str, name: str, seconds: float, output: Path) -> subprocess.Popen[bytes]:
    module = "tests.gateway.ledger.worker"
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", module, url, name, str(seconds), name[1:]],
            stdout=file,
            cwd=ROOT,
        )


class Crew:
    """Four workers and what they wrote down."""

    def __init__(self, url: str, folder: Path, seconds: float, count: int = 4) -> None:
        self.outputs = [folder / f"worker{i}" for i in range(count)]
        self.began = time.monotonic()
        self.workers = [
            _spawn(url, f"w{i}", seconds, output) for i, output in enumerate(self.outputs)
        ]

    def wait_until_busy(self) -> None:
        """Wait until every worker has held something."""
        while not all(path.stat().st_size for path in self.outputs):
            time.sleep(0.05)

    def wait(self, *, but: int | None = None) -> list[Held]:
        """Wait for all to end well and return every lease that was held."""
        for i, process in enumerate(self.workers):
            code = process.wait(60)
            assert i == but or code == 0
        return self.held()

    def held(self) -> list[Held]:
        lines = [line for path in self.outputs for line in path.read_text().splitlines()]
        return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


def most_at_once(held: Iterable[Held], group: str) -> int:
    """Return the largest number of leases of one group (of each that exists) at one instant."""
    name = {
        "replica": lambda h: h[4],
        "key": lambda h: h[3],
        "user": lambda h: (h[3] % worker.USERS, worker.class_of(h[3])),
        "class": lambda h: worker.class_of(h[3]),
    }[group]
    edges = defaultdict(list)
    for h in held:
        # An end before a start at the same instant: the slot was free.
        edges[name(h)] += [(h[0], 1), (h[1], -1)]
    if group == "class":
        edges.pop(ServiceClass.INTERACTIVE, None)
    peak = 0
    for steps in edges.values():
        level = 0
        for _, step in sorted(steps):
            level += step
            peak = max(peak, level)
    return peak


def assert_no_cap_was_passed(held: list[Held]) -> None:
    assert most_at_once(held, "replica") <= worker.SLOTS
    assert most_at_once(held, "key") <= worker.KEY_CAP
    assert most_at_once(held, "user") <= worker.USER_CAP
    assert most_at_once(held, "class") <= worker.BATCH_SLOTS


def longest_pause(held: list[Held], since: float, until: float) -> float:
    """Return the longest time without any start."""
    starts = sorted([since, *(h[0] for h in held if since <= h[0] <= until), until])
    return max(b - a for a, b in pairwise(starts))


def usage(url: str) -> Counter[str]:
    client = redis.Redis.from_url(url)
    records = [fields[b"r"].decode() for _, fields in client.xrange(STREAM)]
    client.close()
    return Counter(records)


async def recount(url: str) -> tuple[int, list[str]]:
    """Return how many tickets the ledger still knows, and what does not add up."""
    ledger = RedisLedger(url)
    await ledger.start()
    view = await ledger.view()
    await ledger.close()
    return len(view.queued) + len(view.running), ledger.mismatches


def open_at_once(url: str) -> None:
    """Let a first process in, and forget it: an empty ledger stays closed for a while."""

    async def enter() -> None:
        ledger = RedisLedger(url, alone=True)
        await ledger.start()
        await asyncio.sleep(0.05)
        await ledger.close()

    asyncio.run(enter())
    client = redis.Redis.from_url(url)
    client.delete(f"{KEYS}hb")  # or the others would wait for it for a heartbeat limit
    client.close()
