"""Several real processes on one real Valkey: caps exact, nothing leaked, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from gateway.core.types import ServiceClass
from gateway.ledger.redis import KEYS, RedisLedger
from portal.stores.embedded import start_valkey
from quotas.snapshots.usage import STREAM
from tests.gateway.ledger import worker

ROOT = Path(__file__).resolve().parents[3]
Held = tuple[float, float, str, int, str]  # from, to, ticket, key, replica

pytestmark = pytest.mark.fault


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
    """Let the first process in: an empty ledger stays closed for a heartbeat limit."""

    async def enter() -> None:
        ledger = RedisLedger(url, alone=True)
        await ledger.start()
        await asyncio.sleep(0.05)
        await ledger.close()

    asyncio.run(enter())


def test_four_processes_race_and_no_cap_is_ever_passed(redis_url: str, tmp_path: Path) -> None:
    """
    Four processes fill 16 slots for seconds: every maximum is exact, every start has one usage
    record, nothing is left over, and no process gets more than its part.
    """
    open_at_once(redis_url)
    held = Crew(redis_url, tmp_path, 4).wait()

    assert_no_cap_was_passed(held)
    assert most_at_once(held, "replica") == worker.SLOTS
    assert usage(redis_url) == Counter(h[2] for h in held)
    assert asyncio.run(recount(redis_url)) == (0, [])
    parts = Counter(h[2].partition("-")[0] for h in held)
    assert min(parts.values()) > max(parts.values()) / 2


def test_a_killed_process_leaks_nothing_and_stops_nobody(redis_url: str, tmp_path: Path) -> None:
    """
    After kill -9 of one of four the others go on within 1.5 s, its slots are back within the
    heartbeat limit and a second, and each of its leases leaves an interrupted record.
    """
    open_at_once(redis_url)
    crew = Crew(redis_url, tmp_path, 9)
    crew.wait_until_busy()
    crew.workers[0].kill()
    crew.workers[0].wait()
    killed, client = time.monotonic(), redis.Redis.from_url(redis_url)
    (entries,) = client.keys(f"{KEYS}g:w0-*")
    left = {name.decode() for name in client.hkeys(entries)}
    time.sleep(6.0)
    still = client.keys(f"{KEYS}g:w0-*")
    held = crew.wait(but=0)

    assert not still, "entries of the killed process are left after the limit and a second"
    others = [h for h in held if not h[2].startswith("w0-")]
    assert longest_pause(others, killed - 1, killed + 6) < 1.5
    assert_no_cap_was_passed(held)
    interrupted = [json.loads(r)["request_id"] for r in usage(redis_url) if r.startswith("{")]
    assert sorted(interrupted) == sorted(left)
    client.close()
    assert asyncio.run(recount(redis_url)) == (0, [])


def test_an_emptied_store_closes_and_never_over_admits(redis_url: str, tmp_path: Path) -> None:
    """
    FLUSHALL in the middle: nobody is ever over a cap, and starts go on after the closed time.
    """
    open_at_once(redis_url)
    crew = Crew(redis_url, tmp_path, 9)
    crew.wait_until_busy()
    redis.Redis.from_url(redis_url).flushall()
    emptied = time.monotonic()
    held = crew.wait()

    assert_no_cap_was_passed(held)
    pause = longest_pause(held, emptied, emptied + 7)
    assert 4.0 < pause < 5.5
    assert asyncio.run(recount(redis_url)) == (0, [])


def test_cut_connections_lose_no_wake_up(redis_url: str, tmp_path: Path) -> None:
    """
    Connections killed again and again: every ticket is served and every record written once.
    """
    open_at_once(redis_url)
    crew = Crew(redis_url, tmp_path, 4)
    client = redis.Redis.from_url(redis_url)
    while any(process.poll() is None for process in crew.workers):
        time.sleep(0.15)
        client.client_kill_filter(_type="normal", skipme=True)
    held = crew.wait()

    assert_no_cap_was_passed(held)
    assert usage(redis_url) == Counter(h[2] for h in held)
    assert asyncio.run(recount(redis_url)) == (0, [])


def test_a_paused_process_returns_with_its_leases(redis_url: str, tmp_path: Path) -> None:
    """
    A process stopped for longer than the limit is reaped; when it goes on it adopts and ends well.
    """
    open_at_once(redis_url)
    crew = Crew(redis_url, tmp_path, 9)
    crew.wait_until_busy()
    os.kill(crew.workers[0].pid, signal.SIGSTOP)
    time.sleep(6.2)
    os.kill(crew.workers[0].pid, signal.SIGCONT)
    crew.wait()

    assert asyncio.run(recount(redis_url)) == (0, [])


@pytest.mark.long
def test_a_killed_and_restarted_store_keeps_every_cap(tmp_path: Path) -> None:
    """
    The store killed and started again from its file: no cap is passed, no start without a record.
    """
    data = tmp_path / "data"
    data.mkdir()
    store = start_valkey(data)
    try:
        open_at_once(store.url)
        crew = Crew(store.url, tmp_path, 8)
        crew.wait_until_busy()
        store.process.kill()
        store.process.wait()
        store = start_valkey(data)
        held = crew.wait()

        assert_no_cap_was_passed(held)
        assert asyncio.run(recount(store.url)) == (0, [])
        assert max(h[0] for h in held) > crew.began + 7, "nothing started after the restart"
    finally:
        store.stop()
