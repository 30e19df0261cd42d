"""Chat goes first, until batch has waited ten minutes; seen from outside, through HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.engine_script import Script
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.journey
NAMES = count()
SLOT_HOLDER = "holds the only slot"


@pytest.fixture(scope="module")
def narrow(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Run an engine with a single slot, so that the order of starts is the order of the queue."""
    rules = {SLOT_HOLDER: {"hang_after": 1}}
    script = Script(model="narrow", slots=1, rules=rules)
    engine = Witness(tmp_path_factory.mktemp("narrow"), script).start()
    product.manage("addengine", engine.url, "--slots", "1", "--json")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def keys(product: Product) -> dict[str, str]:
    """Return keys of two people with chats and two with batch work."""
    return product.keys(
        chatter="interactive", holder="interactive", cruncher="batch", other_cruncher="batch"
    )


def queued(product: Product) -> int:
    """Return how many tickets wait."""
    return len(product.live()["queued"])


async def until(true: Callable[[], bool], call: asyncio.Task[Call], timeout_s: float = 10) -> None:
    """Wait for what a running call brings about."""
    give_up = time.monotonic() + timeout_s
    while not true():
        assert not call.done(), call.result()
        assert time.monotonic() < give_up, "the call neither runs, waits nor ends"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def full_engine(
    client: Caller, product: Product, narrow: Witness, key: str, waiting: int = 0
) -> AsyncIterator[None]:
    """Keep the only slot taken for the length of a `with` block."""
    wait_until(narrow.idle, 5, "the narrow engine is idle")
    # The picture is up to a second old: whoever waited in the test before must be gone from it.
    wait_until(lambda: queued(product) == waiting, 5, f"{waiting} wait")
    mark = f"{SLOT_HOLDER} {next(NAMES)}"
    holder = asyncio.create_task(client.ask(key, chat("narrow", mark)))
    await until(lambda: any(record.mark == mark for record in narrow.records()), holder)
    try:
        yield
    finally:
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)


async def send(
    client: Caller, product: Product, key: str, mark: str
) -> tuple[asyncio.Task[Call], float]:
    """Send a chat and return once it waits, with a moment before it was sent."""
    before, waiting = time.monotonic(), queued(product)
    task = asyncio.create_task(client.ask(key, chat("narrow", mark)))
    await until(lambda: queued(product) > waiting, task)
    return task, before


async def test_a_chat_passes_queued_batch(
    product: Product, narrow: Witness, keys: dict[str, str]
) -> None:
    """
    While batch keeps the engine full, a chat sent last starts before all queued batch requests.
    """
    async with Caller(product.url) as client:
        async with full_engine(client, product, narrow, keys["cruncher"]):
            sent = [
                await send(client, product, keys[owner], f"{owner}/{number}")
                for number in range(2)
                for owner in ("cruncher", "other_cruncher")
            ]
            sent.append(await send(client, product, keys["chatter"], "chatter/last"))
        calls = await asyncio.gather(*(task for task, _ in sent))
    started = [r.mark for r in narrow.records() if r.mark in {call.mark for call in calls}]
    assert all(call.whole for call in calls)
    assert started[0] == "chatter/last"


@pytest.mark.parametrize(("waited_s", "batch_first"), [(599, False), (600, True)])
async def test_batch_that_waited_ten_minutes_passes_a_fresh_chat(
    product: Product, narrow: Witness, keys: dict[str, str], waited_s: int, batch_first: bool
) -> None:
    """
    A batch request that has waited 600 s starts before a fresh chat, at 599 s after it.
    """
    batch, fresh = f"aged/{waited_s}", f"fresh/{waited_s}"
    async with Caller(product.url) as client:
        async with full_engine(client, product, narrow, keys["holder"]):
            first, sent_s = await send(client, product, keys["cruncher"], batch)
            # What passed since it was sent counts as waiting too: never more than 599 s.
            passed_s = 0.0 if batch_first else time.monotonic() - sent_s
            product.advance(waited_s - passed_s)
            second, _ = await send(client, product, keys["chatter"], fresh)
        await asyncio.gather(first, second)
    ranks = {batch: 0, fresh: 1} if batch_first else {batch: 1, fresh: 0}
    assert {r.mark for r in narrow.records()} >= set(ranks)
    assert checkers.order_kept(narrow.records(), ranks) == []


async def test_age_counts_from_the_first_queueing(
    product: Product, narrow: Witness, keys: dict[str, str]
) -> None:
    """
    A batch request the engine sends back at its ninth minute keeps its age: a minute later it
    passes a fresh chat.
    """
    batch, fresh = "sent back/1", "fresh/after"
    async with Caller(product.url) as client:
        async with full_engine(client, product, narrow, keys["holder"]):
            first, sent_s = await send(client, product, keys["cruncher"], batch)
            product.advance(540 - (time.monotonic() - sent_s))
            narrow.tell(rules={**narrow.script.rules, batch: {"fail_status": 503}})
        # The engine is free and says no each time; then its slot is taken by a chat.
        await until(lambda: any(r.mark == batch for r in narrow.records()), first)
        async with full_engine(client, product, narrow, keys["holder"], waiting=1):
            narrow.reset()
            product.advance(60)
            second, _ = await send(client, product, keys["chatter"], fresh)
        calls = await asyncio.gather(first, second)
    assert all(call.whole for call in calls)
    served = [r for r in narrow.records() if r.mark in (batch, fresh) and r.outcome == "done"]
    served = [record for record in served if record.tokens]
    assert [record.mark for record in served] == [batch, fresh]
