"""A gateway process that only admits, holds and releases, and writes down when it held what.

Run as `python -m tests.gateway.ledger.worker URL NAME SECONDS SEED`; each line of its output is
one held lease as JSON: instants of the machine's monotonic clock, shared by all processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time

from gateway.core.types import Outcome, ServiceClass, Settlement, Ticket
from gateway.ledger.interface import KeyPolicy, PoolPolicy, Refused, ReplicaPolicy, UserPolicy
from gateway.ledger.redis import RedisLedger
from tests.gateway.ledger.awaited import admit

KEYS, USERS, TASKS = 40, 15, 24
KEY_CAP, USER_CAP, BATCH_SLOTS, SLOTS = 2, 4, 4, 8
REPLICAS = ("r0", "r1")
HOLD_S = 0.02


def class_of(key: int) -> ServiceClass:
    return ServiceClass.BATCH if key % 3 == 0 else ServiceClass.INTERACTIVE


def register(ledger: RedisLedger) -> None:
    ledger.write_pool(PoolPolicy("m", 1, BATCH_SLOTS, BATCH_SLOTS, 60_000, 10_000, 10_000))
    for name in REPLICAS:
        ledger.write_replica(ReplicaPolicy(name, 1, "m", SLOTS, 100_000))
    for key in range(KEYS):
        ledger.write_key(KeyPolicy(f"k{key}", 1, True, KEY_CAP, 10_000, False))
    for user in range(USERS):
        for cls in ServiceClass:
            ledger.write_user(UserPolicy(f"u{user}", cls, 1, USER_CAP, 10_000))


async def work(ledger: RedisLedger, name: str, seconds: float, rng: random.Random) -> None:
    """Keep asking until the time is up, leaving the queue now and then."""
    until, n = time.monotonic() + seconds, 0

    async def task(number: int) -> None:
        nonlocal n
        while time.monotonic() < until:
            n += 1
            key = rng.randrange(KEYS)
            ticket = Ticket(
                f"{name}-{n}", f"k{key}", f"u{key % USERS}", class_of(key), "m",
                interrupted=f'{{"request_id":"{name}-{n}","replica_id":""}}'.encode(),
            )  # fmt: skip
            future = admit(ledger, ticket)
            if rng.random() < 0.03:
                await asyncio.sleep(rng.random() * 0.05)
                if not future.done():
                    ledger.cancel(ticket.ticket_id, Outcome.EVICTED_CLIENT_GONE)
                    continue
            with contextlib.suppress(Refused):
                grant = await future
                began = time.monotonic()
                await asyncio.sleep(HOLD_S * (0.5 + rng.random()))
                note = (began, time.monotonic(), ticket.ticket_id, key, grant.replica_id)
                print(json.dumps(note), flush=True)
                ledger.release(
                    ticket.ticket_id,
                    Settlement(Outcome.SERVED, 10, 0, 10, ticket.ticket_id.encode()),
                )

    await asyncio.gather(*(task(i) for i in range(TASKS)))


async def main(url: str, name: str, seconds: float, seed: int) -> None:
    ledger = RedisLedger(url, name=name)
    await ledger.start()
    register(ledger)
    await work(ledger, name, seconds, random.Random(seed))
    await ledger.close()
    if ledger.script_errors:
        sys.exit(f"{ledger.script_errors} errors in the script")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
