"""Several real processes on one real Valkey: caps exact, nothing leaked, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import redis

from gateway.ledger.redis import KEYS
from portal.stores.embedded import start_valkey
from tests.gateway.ledger import worker
from tests.gateway.ledger.crew import (
    Crew,
    assert_no_cap_was_passed,
    longest_pause,
    most_at_once,
    open_at_once,
    recount,
    usage,
)

pytestmark = pytest.mark.fault


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
    After kill -9 of one of four the others go on long before its heartbeat limit, its slots are
    back within that limit and a second, and each of its leases leaves an interrupted record.
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
    # Who waited for the dead one would stand still for its whole limit, 5 s.
    assert longest_pause(others, killed - 1, killed + 6) < 3.0
    assert_no_cap_was_passed(held)
    interrupted = [json.loads(r)["request_id"] for r in usage(redis_url) if r.startswith("{")]
    assert sorted(interrupted) == sorted(left)
    client.close()
    assert asyncio.run(recount(redis_url)) == (0, [])


@pytest.mark.parametrize("one_is_mute", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_emptied_store_closes_and_never_over_admits(
    redis_url: str, tmp_path: Path, one_is_mute: bool
) -> None:
    """
    FLUSHALL in the middle: nobody is ever over a cap. Starts go on as soon as everybody has said
    what it holds; while one that the others know of has not, only after the heartbeat limit.
    """
    open_at_once(redis_url)
    crew = Crew(redis_url, tmp_path, 9)
    crew.wait_until_busy()
    time.sleep(0.5)
    if one_is_mute:
        os.kill(crew.workers[0].pid, signal.SIGSTOP)
    redis.Redis.from_url(redis_url).flushall()
    emptied = time.monotonic()
    if one_is_mute:
        time.sleep(4.5)
        os.kill(crew.workers[0].pid, signal.SIGCONT)
    held = crew.wait()

    assert_no_cap_was_passed(held)
    others = [h for h in held if not (one_is_mute and h[2].startswith("w0-"))]
    pause = longest_pause(others, emptied, emptied + 7)
    if one_is_mute:
        assert 4.0 < pause < 5.5
    else:
        assert 1.4 < pause < 3.5
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
