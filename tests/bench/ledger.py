"""What the ledger costs: `python -m tests.bench.ledger REDIS_URL` prints one table.

CPU of the gateway per admitted and released request, net of the memory ledger under the same
driver; added latency at concurrency 1; time of the server per request with 10 and with 10,000
tickets queued in 500 flows. All by process time or the server's own counter, so that a busy
machine changes little.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

import redis
import uvloop

from gateway.core.types import Grant, Outcome, ServiceClass, Settlement, Ticket
from gateway.ledger.interface import KeyPolicy, Ledger, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryLedger
from gateway.ledger.redis import RedisLedger

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
            await ledger.admit(ticket(name, n % 20))
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

    ledger.admit(ticket(name, user)).add_done_callback(done)


async def main(url: str) -> None:
    redis.Redis.from_url(url).flushdb()
    await costs(url)
    await depth(url)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
