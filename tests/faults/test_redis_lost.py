"""Redis forgets everything, dies, or comes back with yesterday: life goes on by the rules."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.crowd import ask_apart, capped
from tests.rig.entries import entries
from tests.rig.product import Product, process_table
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
NORMAL_WITHIN_S = 15
BUSY_MACHINE_S = 5  # what two cores that do other things as well may add to any limit
SLOTS = 8
RUNS = count(1)


async def use(
    product: Product, key: str, owner: str, calls: list[Call], until: Callable[[], bool]
) -> None:
    """Chat with a key without a pause until told to end."""
    async with Caller(product.url, timeout_s=30) as client:
        while not until():
            calls.append(await client.ask(key, chat("witness", f"{owner}/{time.time_ns()}")))
            await asyncio.sleep(0.05)


async def test_a_good_key_is_never_refused_for_good(doomed: Product, witness: Witness) -> None:
    """
    While Redis is killed keys get answers or 503 with Retry-After, never 401; normal within 15 s.
    """
    owners = {"anna": "interactive", "ben": "interactive", "cleo": "batch"}
    keys = await asyncio.to_thread(doomed.keys, **owners)
    witness.tell(first_delay_s=0.05)
    calls: list[Call] = []
    ended = False
    users = [
        asyncio.create_task(use(doomed, key, owner, calls, lambda: ended))
        for owner, key in keys.items()
    ]
    await asyncio.sleep(1)
    lost_s = time.monotonic()
    doomed.kill("valkey")

    def is_normal() -> bool:
        """Answer whether every key has had only whole answers for the last two seconds."""
        recent = [call for call in calls if call.ended_s > time.monotonic() - 2]
        return {call.mark.partition("/")[0] for call in recent if call.whole} == set(keys) and all(
            call.whole for call in recent
        )

    await asyncio.sleep(2.5)
    while not is_normal():
        passed_s = time.monotonic() - lost_s
        assert passed_s < NORMAL_WITHIN_S + BUSY_MACHINE_S, Counter(c.status for c in calls)
        await asyncio.sleep(0.1)
    ended = True
    await asyncio.gather(*users)

    statuses = Counter(call.status for call in calls)
    assert set(statuses) <= {200, 429, 503}, statuses
    assert checkers.all_ended(calls, may_break=False) == []
    assert checkers.nobody_elses(calls) == []
    assert checkers.caps_held(witness.records(), dict.fromkeys(keys, 2)) == []


class Store:
    """The product's Valkey, and how it loses what it knew."""

    def __init__(self, product: Product, kept: Path) -> None:
        self._product, self._kept = product, kept
        self._folder = product.data_dir / "valkey"

    def keep(self) -> None:
        """Put a copy of its files aside; what it says after this is not in them."""
        time.sleep(1.2)  # it writes to its file once a second
        shutil.copytree(self._folder, self._kept)

    def lose(self, how: str) -> None:
        """Lose everything, or everything since the copy."""
        if how == "flushed":
            with self._product.redis() as link:
                link.flushall()
            return
        supervisor = self._product.process
        assert supervisor is not None
        os.kill(supervisor.pid, signal.SIGSTOP)  # or it starts it before the files are changed
        try:
            dead = self._product.kill("valkey")
            wait_until(lambda: dead not in process_table(), 5, "it is dead", 0.002)
            shutil.rmtree(self._folder)
            if how == "older":
                shutil.copytree(self._kept, self._folder)
            else:
                self._folder.mkdir(mode=0o700)
        finally:
            os.kill(supervisor.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))]
)
@pytest.mark.parametrize("loss", ["flushed", "empty", "older"])
async def test_no_slot_is_given_twice_when_redis_forgets_who_runs(
    doomed: Product, witness: Witness, tmp_path: Path, loss: str, seed: int
) -> None:
    """
    Redis loses its data with all slots busy, 50 ms before fifty arrivals: running streams finish,
    the engine never has more than its slots or a key more than its cap, no slot is lost, and all
    is normal within 15 s.
    """
    dice, run = random.Random(f"{loss} {seed}"), next(RUNS)
    owners = [f"lost{run}-{number}" for number in range(12)]
    caps = {owner: 1 + number % 3 for number, owner in enumerate(owners)}
    secrets = await asyncio.to_thread(
        capped, doomed, {owner: ("interactive", cap) for owner, cap in caps.items()}
    )
    store = Store(doomed, tmp_path / "kept")

    def ask(owner: str, mark: str) -> asyncio.Task[Call]:
        return asyncio.create_task(ask_apart(doomed, secrets[owner], f"{owner}/{mark}"))

    async def all_busy(phase: str) -> list[asyncio.Task[Call]]:
        """Take all slots, by other keys each time."""
        places = [owner for owner in owners for _ in range(caps[owner])]
        chosen = enumerate(dice.sample(places, SLOTS))
        tasks = [ask(owner, f"{phase}{number}") for number, owner in chosen]

        def taken() -> int:
            mine = (record for record in witness.records() if record.owner in owners)
            return sum(phase in record.mark for record in mine)

        await asyncio.to_thread(wait_until, lambda: taken() == SLOTS, 20, "all slots are taken")
        return tasks

    if loss == "older":
        witness.tell(decode_tps=10, tokens=dice.randrange(16, 24))
        earlier = await all_busy("earlier")
        await asyncio.to_thread(store.keep)
        assert all(call.whole for call in await asyncio.gather(*earlier))
    witness.tell(decode_tps=5, tokens=dice.randrange(18, 30))  # longer than the loss lasts
    running = await all_busy("running")
    await asyncio.to_thread(store.lose, loss)
    lost_s = time.monotonic()
    await asyncio.sleep(dice.uniform(0, 0.05))
    witness.tell(decode_tps=100, tokens=dice.randrange(4, 20))
    burst = [ask(dice.choice(owners), f"burst{number}") for number in range(50)]
    first = await asyncio.gather(*running)
    later = await asyncio.gather(*burst)
    last = await ask(owners[0], "last")
    while not last.whole and time.monotonic() < lost_s + NORMAL_WITHIN_S + BUSY_MACHINE_S:
        await asyncio.sleep(0.1)
        last = await ask(owners[0], "last")
    normal_s = time.monotonic() - lost_s

    records = [record for record in witness.records() if record.owner in owners]
    print(f"{loss}, seed {seed}: normal after {normal_s:.1f} s, "
          f"burst {dict(Counter(call.status for call in later))}")  # fmt: skip
    assert [(call.status, call.code) for call in first if not call.whole] == []
    assert checkers.slots_held(records, SLOTS) == []
    assert checkers.caps_held(records, caps) == []
    assert checkers.all_ended(later, may_break=False) == []
    assert checkers.nobody_elses([*first, *later]) == []
    assert {call.status for call in later} <= {200, 503}
    assert last.whole
    assert normal_s <= NORMAL_WITHIN_S + BUSY_MACHINE_S
    wait_until(lambda: not entries(doomed), 15, "no slot is lost")
