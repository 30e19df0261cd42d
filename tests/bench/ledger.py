"""What the ledger costs: `python -m tests.bench.ledger REDIS_URL` prints one table.

CPU of the gateway per admitted and released request, net of the memory ledger under the same
driver; added latency at concurrency 1; time of the server per request with 10 and with 10,000
tickets queued in 500 flows: by process time or the server's own counter, so that a busy machine
changes little. Then four processes at work: for how long nothing starts when one is killed or the
store is emptied, and when the slots of the dead are back.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import redis
import uvloop

from gateway.core.types import Grant, Outcome, ServiceClass, Settlement, Ticket
from gateway.ledger.interface import KeyPolicy, Ledger, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryLedger
from gateway.ledger.redis import KEYS, RedisLedger
from tests.gateway.ledger.awaited import admit
from tests.gateway.ledger.crew import (
    Crew,
    Held,
    assert_no_cap_was_passed,
    longest_pause,
    open_at_once,
)

INTERACTIVE = ServiceClass.INTERACTIVE
RECORD = b'{"request_id":"' + b"x" * 300 + b'"}'
ROUNDS = 3
FLOWS = 500
STEPS = 500


def register(ledger: Ledger, slots: int, users: int, cap: int) -> None:
    ledger.write_pool(PoolPolicy("m", 1, None, None, 60_000, 10**6, 10**6))
    ledger.write_replica(ReplicaPolicy("r0", 1, "m", slots, 10**9))
    for n in range(users):
        ledger.write_key(KeyPolicy(f"k{n}", 1, True, cap, 10**6, False))
        ledger.write_user(UserPolicy(f"u{n}", INTERACTIVE, 1, cap, 10**6))


def ticket(name: str, user: int) -> Ticket:
    return Ticket(
        name, f"k{user}", f"u{user}", INTERACTIVE, "m", 1, 100, 100, ttl_ms=3_600_000,
        interrupted=RECORD,
    )  # fmt: skip


async def load(ledger: Ledger, count: int, concurrency: int, hold_s: float) -> tuple[float, float]:
    """Return CPU microseconds per request and the median wait for a grant in milliseconds."""
    numbers, waits = iter(range(count)), list[float]()
    tag = f"{time.monotonic_ns():x}"

    async def worker() -> None:
        for n in numbers:
            began = time.perf_counter()
            name = f"{tag}-{n}"
            await admit(ledger, ticket(name, n % 20))
            waits.append(time.perf_counter() - began)
            if hold_s:
                await asyncio.sleep(hold_s)
            ledger.release(name, Settlement(Outcome.SERVED, 100, 0, 50, RECORD))
            if concurrency == 1:
                await asyncio.sleep(0.003)

    cpu = time.process_time()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return ((time.process_time() - cpu) / count * 1e6, median(waits) * 1000)


async def costs(url: str) -> None:
    memory, shared = MemoryLedger(), RedisLedger(url, alone=True)
    for ledger in (memory, shared):
        await ledger.start()
        register(ledger, 1000, 20, 1000)
    cases = {
        "saturated, 64 at once": (6_000, 64, 0.0),
        "64 at once, each 100 ms": (3_000, 64, 0.1),
        "one at a time": (400, 1, 0.0),
    }
    print("| load | memory us | redis us | net us | wait for a grant ms |\n|---|---|---|---|---|")
    for name, (count, concurrency, hold_s) in cases.items():
        rounds = [
            (await load(memory, count, concurrency, hold_s),
             await load(shared, count, concurrency, hold_s))
            for _ in range(ROUNDS)
        ]  # fmt: skip
        of_memory, of_redis = (median(r[i][0] for r in rounds) for i in (0, 1))
        wait = median(r[1][1] for r in rounds)
        net = of_redis - of_memory
        print(f"| {name} | {of_memory:.0f} | {of_redis:.0f} | {net:.0f} | {wait:.2f} |")
    await memory.close()
    await shared.close()


def server_us(client: redis.Redis) -> float:
    """Return the microseconds of CPU the server has used so far."""
    cpu = client.info("cpu")
    return (cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6


async def depth(url: str) -> None:
    """Print what a request costs the server with a short and with a long queue."""
    client = redis.Redis.from_url(url)
    print("\n| tickets queued in 500 flows | server us per release, start and arrival |\n|---|---|")
    found: list[float] = []
    for queued in (10, 10_000):
        client.flushdb()
        ledger = RedisLedger(url, alone=True)
        await ledger.start()
        register(ledger, 16, FLOWS, 16)
        granted: asyncio.Queue[str] = asyncio.Queue()
        for n in range(queued + 16):
            ask(ledger, f"q{n}", n % FLOWS, granted)
        running = [await granted.get() for _ in range(16)]
        while ledger.batch.has_pending or ledger.batch.is_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        before = server_us(client)
        for n in range(STEPS):
            ask(ledger, f"n{n}", n % FLOWS, granted)
            ledger.release(running.pop(0), Settlement(Outcome.SERVED, 100, 0, 50, RECORD))
            running.append(await granted.get())
        found.append((server_us(client) - before) / STEPS)
        print(f"| {queued} | {found[-1]:.0f} |")
        await ledger.close()
    print(f"\nratio {found[1] / found[0]:.2f}")
    client.close()


def ask(ledger: Ledger, name: str, user: int, granted: asyncio.Queue[str]) -> None:
    """Queue a ticket; its name comes out of `granted` when it starts."""

    def done(future: asyncio.Future[Grant]) -> None:
        if not future.cancelled() and future.exception() is None:
            granted.put_nowait(name)

    admit(ledger, ticket(name, user)).add_done_callback(done)


async def main(url: str) -> None:
    redis.Redis.from_url(url).flushdb()
    await costs(url)
    await depth(url)


def after(url: str, event: Callable[[Crew], None], lost: str = "") -> tuple[float, float]:
    """Return the longest pause of starts after an event, and when the slots of `lost` were back."""
    client = redis.Redis.from_url(url)
    client.flushall()
    open_at_once(url)
    with tempfile.TemporaryDirectory(prefix="fairway-bench-") as folder:
        crew = Crew(url, Path(folder), 9)
        crew.wait_until_busy()
        time.sleep(1)
        event(crew)
        at_s = back_s = time.monotonic()
        while lost and client.keys(f"{KEYS}g:{lost}-*"):
            back_s = time.monotonic()
            time.sleep(0.01)
        held: list[Held] = crew.wait(but=0 if lost else None)
    client.close()
    assert_no_cap_was_passed(held)
    others = [h for h in held if not lost or not h[2].startswith(f"{lost}-")]
    return longest_pause(others, at_s, at_s + 7), back_s - at_s


def losses(url: str) -> None:
    """Print for how long nothing starts when a process is killed and when the store is emptied."""

    def kill(crew: Crew) -> None:
        crew.workers[0].kill()
        crew.workers[0].wait()

    def flush(_: Crew) -> None:
        redis.Redis.from_url(url).flushall()

    print(
        "\n| four processes at work | longest pause of starts s | slots of the dead back after s |"
    )
    print("|---|---|---|")
    for name, event, lost in (("kill -9 of one", kill, "w0"), ("FLUSHALL", flush, "")):
        found = [after(url, event, lost) for _ in range(ROUNDS)]
        pauses = ", ".join(f"{pause:.2f}" for pause, _ in found)
        back = ", ".join(f"{s:.2f}" for _, s in found) if lost else ""
        print(f"| {name} | {pauses} | {back} |", flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
    losses(sys.argv[1])
