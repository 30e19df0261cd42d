"""A key's cap holds at the engine itself, and nobody's leaving costs a slot."""

from __future__ import annotations

import asyncio

import pytest

from tests.rig import checkers
from tests.rig.chat import Caller, chat
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.journey


@pytest.fixture(scope="module")
def key(product: Product) -> str:
    """Return an interactive key with the default cap of two."""
    return product.key("alice")


def idle(product: Product) -> bool:
    """Answer whether the gateway holds and queues nothing."""
    live = product.live()
    return not live["running"] and not live["queued"]


async def test_the_third_of_three_starts_when_one_ends(
    product: Product, witness: Witness, key: str
) -> None:
    """
    Of three requests at once on a key with cap 2 the engine never sees three; all are served.
    """
    witness.tell(first_delay_s=0.4)
    async with Caller(product.url) as client:
        calls = await asyncio.gather(
            *(client.ask(key, chat("witness", f"three/{number}")) for number in range(3))
        )
    records = witness.records("three")
    assert [call.status for call in calls] == [200, 200, 200]
    assert checkers.caps_held(records, {"three": 2}) == []
    first_end_s = min(record.ended_s or 0.0 for record in records)
    third_start_s = max(record.arrived_s for record in records)
    assert 0.0 <= third_start_s - first_end_s < 0.3


async def test_fifty_cut_streams_leave_no_slot_held(
    product: Product, witness: Witness, key: str
) -> None:
    """
    Fifty clients leave after three chunks; within two seconds nothing is held, and the key works.
    """
    witness.tell(decode_tps=50, tokens=10_000)
    async with Caller(product.url) as client:
        for round_ in range(25):
            await asyncio.gather(
                *(
                    client.ask(key, chat("witness", f"cut50/{round_}-{one}"), leave_after=3)
                    for one in range(2)
                )
            )
        wait_until(lambda: idle(product) and witness.idle(), 2, "no slot is held")
        witness.reset()
        last = await client.ask(key, chat("witness", "cut50/last"))
    records = witness.records("cut50")
    assert last.whole
    assert [record.outcome for record in records[:-1]] == ["aborted"] * 50
    assert checkers.caps_held(records, {"cut50": 2}) == []
