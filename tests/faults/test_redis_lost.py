"""Redis forgets everything, or dies: a good key is never called bad, and life goes on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis

from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault
NORMAL_WITHIN_S = 15


@pytest.fixture(scope="module")
def keys(doomed: Product) -> dict[str, str]:
    """Return good keys of three people."""
    return doomed.keys(anna="interactive", ben="interactive", cleo="batch")


async def use(
    product: Product, key: str, owner: str, calls: list[Call], until: Callable[[], bool]
) -> None:
    """Chat with a key without a pause until told to end."""
    number = 0
    async with Caller(product.url, timeout_s=30) as client:
        while not until():
            number += 1
            calls.append(await client.ask(key, chat("witness", f"{owner}/{time.time_ns()}")))
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("loss", ["flushall", "killed", "killed_and_empty"])
async def test_a_good_key_is_never_refused_for_good(
    doomed: Product, witness: Witness, keys: dict[str, str], loss: str
) -> None:
    """
    While Redis is lost keys get answers or 503 with Retry-After, never 401; normal within 15 s.
    """
    witness.tell(first_delay_s=0.05)
    calls: list[Call] = []
    ended = False
    users = [
        asyncio.create_task(use(doomed, key, owner, calls, lambda: ended))
        for owner, key in keys.items()
    ]
    await asyncio.sleep(1)
    lost_s = time.monotonic()
    if loss != "killed":
        with doomed.redis() as link:
            link.flushall()
    if loss != "flushall":
        doomed.kill("valkey")

    def is_normal() -> bool:
        """Answer whether every key has had only whole answers for the last two seconds."""
        recent = [call for call in calls if call.ended_s > time.monotonic() - 2]
        return {call.mark.partition("/")[0] for call in recent if call.whole} == set(keys) and all(
            call.whole for call in recent
        )

    await asyncio.sleep(2.5)
    while not is_normal():
        assert time.monotonic() < lost_s + NORMAL_WITHIN_S + 2, Counter(c.status for c in calls)
        await asyncio.sleep(0.1)
    ended = True
    await asyncio.gather(*users)

    statuses = Counter(call.status for call in calls)
    assert set(statuses) <= {200, 429, 503}, statuses
    assert checkers.all_ended(calls, may_break=False) == []
    assert checkers.nobody_elses(calls) == []
    caps = {"anna": 2, "ben": 2, "cleo": 2}
    assert checkers.caps_held(witness.records(), caps) == []


@pytest.mark.parametrize("loss", ["flushall", "killed"])
async def test_no_slot_is_given_twice_when_redis_forgets_who_runs(
    doomed: Product, witness: Witness, loss: str
) -> None:
    """
    Redis is emptied with all slots busy, just before fifty arrivals: running streams finish, the
    engine never has more than its slots or a key more than its cap, and no slot is lost.
    """
    owners = {f"{loss[:2]}{number}": "interactive" for number in range(12)}
    secrets = await asyncio.to_thread(doomed.keys, **owners)
    names = list(owners)
    witness.tell(decode_tps=4, tokens=16)  # four seconds a stream: longer than the loss lasts

    async def ask(owner: str, number: int) -> Call:
        async with Caller(doomed.url, timeout_s=90) as client:
            return await client.ask(secrets[owner], chat("witness", f"{owner}/{number}"))

    running = [asyncio.create_task(ask(owner, one)) for owner in names[:4] for one in range(2)]
    marks = {f"{owner}/{one}" for owner in names[:4] for one in range(2)}
    await asyncio.to_thread(
        wait_until,
        lambda: {r.mark for r in witness.records()} >= marks,
        10,
        "all eight slots are taken",
    )
    if loss == "killed":
        doomed.kill("valkey")
    with suppress(redis.ConnectionError), doomed.redis() as link:
        link.flushall()
    witness.tell(decode_tps=100)
    burst = [
        asyncio.create_task(ask(names[number % len(names)], 100 + number)) for number in range(50)
    ]
    first, later = await asyncio.gather(*running), await asyncio.gather(*burst)

    records = [record for record in witness.records() if record.owner in owners]
    assert [call.code for call in first if not call.whole] == []
    assert checkers.slots_held(records, 8) == []
    assert checkers.caps_held(records, dict.fromkeys(owners, 2)) == []
    assert checkers.all_ended(later, may_break=False) == []
    assert {call.status for call in later} <= {200, 429, 503}

    def nothing_held() -> bool:
        live = doomed.live()
        return bool(live["open"] and not live["running"] and not live["queued"])

    wait_until(nothing_held, 15, "no slot is lost")
