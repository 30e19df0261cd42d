"""Several gateways behind one port are one gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness, peak

pytestmark = pytest.mark.fault
HEARTBEAT_LIMIT_S = 5.0


@pytest.fixture(scope="module")
def key(doomed: Product) -> str:
    """Return a key with a cap of three that may queue plenty."""
    secret = doomed.key("crowd")
    doomed.manage("setlimit", "--user", "crowd", "--class", "interactive", "--per", "key",
                  "--in-flight", "3", "--queued", "100")  # fmt: skip
    doomed.manage("setlimit", "--user", "crowd", "--class", "interactive", "--per", "person",
                  "--in-flight", "3", "--queued", "100")  # fmt: skip
    return secret


async def ask_apart(product: Product, key: str, mark: str) -> Call:
    """Send one chat over a connection of its own, so that either gateway may take it."""
    async with Caller(product.url) as client:
        return await client.ask(key, chat("witness", mark))


async def test_a_cap_holds_over_all_gateways(doomed: Product, witness: Witness, key: str) -> None:
    """Sixty requests at once on a key with cap 3: all served, three at a time and never four."""
    witness.tell(first_delay_s=0.1)
    calls = await asyncio.gather(*(ask_apart(doomed, key, f"crowd/{one}") for one in range(60)))
    records = witness.records("crowd")
    assert [(c.status, c.code) for c in calls if not c.whole] == []
    assert checkers.caps_held(records, {"crowd": 3}) == []
    assert peak(records) == 3
    assert checkers.nobody_elses(calls) == []


async def test_a_killed_gateway_gives_its_slots_back(
    doomed: Product, witness: Witness, key: str
) -> None:
    """kill -9 of the gateways: slots are free again soon after, each stream is on the books."""
    witness.tell(decode_tps=5, tokens=10_000)
    streams = [asyncio.create_task(ask_apart(doomed, key, f"victim/{one}")) for one in range(3)]
    await asyncio.to_thread(
        wait_until, lambda: len(witness.records("victim")) == 3, 10, "three streams run"
    )
    for pid in doomed.parts()["gateway"]:
        os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    await asyncio.gather(*streams, return_exceptions=True)
    witness.reset()
    wait_until(lambda: doomed.get("/readyz", timeout=2) == 200, 10, "gateways are back")
    call = await ask_apart(doomed, key, "heir/1")
    while not call.whole and time.monotonic() < killed_s + 20:
        await asyncio.sleep(0.5)
        call = await ask_apart(doomed, key, "heir/1")
    assert call.whole
    # The new gateways are up sooner than the old ones' leases end.
    assert time.monotonic() - killed_s < HEARTBEAT_LIMIT_S + 1 + 10
    for one in range(3):
        (row,) = doomed.usage(f"victim/{one}")
        assert row["outcome"] == "interrupted"
