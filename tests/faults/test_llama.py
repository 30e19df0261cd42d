"""A real engine that lets go late: its slots are shown honestly and never asked twice."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.rig.chat import Call, Caller
from tests.rig.crowd import capped
from tests.rig.llama import COUNTER, MODEL, Llama
from tests.rig.product import Product
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.fault
SLOTS = 4


async def test_a_slot_still_busy_in_the_engine_is_given_to_nobody(
    product: Product, llama: Llama
) -> None:
    """
    Clients leave in the middle of long answers on all of llama.cpp's slots while others wait:
    the others get slots the engine has let go of, and none ever waits inside the engine.
    """
    secrets = await asyncio.to_thread(
        capped, product, {f"llama{one}": ("interactive", 4) for one in range(2)}
    )
    leaving, staying = secrets.values()

    async def ask(key: str, number: int, tokens: int, leave_after: int = -1) -> Call:
        async with Caller(product.url) as client:
            body = {
                "model": MODEL, "stream": True, "ignore_eos": True, "max_tokens": tokens,
                "messages": [{"role": "user", "content": f"Number {number}"}],
            }  # fmt: skip
            return await client.ask(key, body, leave_after=leave_after)

    most_deferred, looks = 0, 0
    ended = asyncio.Event()

    async def look() -> None:
        nonlocal most_deferred, looks
        async with httpx.AsyncClient(base_url=llama.url, verify=False) as client:
            while not ended.is_set():
                page = (await client.get("/metrics")).text
                deferred = dict(COUNTER.findall(page))["requests_deferred"]
                most_deferred = max(most_deferred, int(float(deferred)))
                looks += 1
                await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    for _ in range(3):
        left = [asyncio.create_task(ask(leaving, n, 1500, leave_after=5)) for n in range(SLOTS)]
        await asyncio.sleep(0.1)
        later = await asyncio.gather(*(ask(staying, n, 4) for n in range(SLOTS)), *left)
        assert [(c.status, c.code) for c in later[:SLOTS] if not c.whole] == []
    ended.set()
    await looking
    print(f"most deferred in the engine in {looks} looks: {most_deferred}")
    assert looks > 10
    assert most_deferred == 0
    wait_until(lambda: llama.busy_slots() == 0, 10, "the engine has let go of all")
    wait_until(lambda: not product.live()["running"], 5, "and so has the gateway")
