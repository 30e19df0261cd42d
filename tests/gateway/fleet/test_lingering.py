"""A slot that its client left is given back when the engine has let go of it."""

from __future__ import annotations

import asyncio

import httpx

from gateway.core.types import Holding, ServiceClass
from gateway.fleet import lingering
from gateway.fleet.lingering import Lingering
from tests.gateway.fleet.conftest import LlamaServer
from tests.gateway.fleet.test_prober import snapshot, until, watching


class Engine:
    """An engine and a ledger of which a test says what they tell."""

    def __init__(self) -> None:
        self.busy: int | None = 0
        self.held: int | None = 0
        self.asked = 0

    async def tell_busy(self) -> int | None:
        self.asked += 1
        return self.busy

    async def tell_held(self) -> int | None:
        return self.held

    def lingering(self) -> Lingering:
        return Lingering(asyncio.get_running_loop(), self.tell_busy, self.tell_held)


async def looks(number: int = 1) -> None:
    """Let so many looks pass."""
    await asyncio.sleep(lingering.LEAST_S + number * lingering.EVERY_S + 0.05)


async def test_a_slot_the_engine_has_let_go_of_is_given_back_soon() -> None:
    """Of two that linger, only as many are released as the engine has fewer busy than counted."""
    engine, given = Engine(), []
    engine.held, engine.busy = 3, 3
    slots = engine.lingering()
    slots.add(60, lambda: given.append("a"))
    slots.add(60, lambda: given.append("b"))
    await looks(2)
    assert given == []

    engine.busy = 2
    await looks()
    assert given[:1] == ["a"]
    engine.held, engine.busy = 2, 1
    await looks()
    assert given == ["a", "b"]

    asked = engine.asked
    await looks(2)
    assert engine.asked == asked, "nobody lingers, so nobody asks"


async def test_what_stays_busy_is_given_back_at_the_limit() -> None:
    """An engine that says nothing, or nothing new, is waited for no longer than was allowed."""
    engine, given = Engine(), []
    engine.held, engine.busy = 1, None
    slots = engine.lingering()
    slots.add(0.3, lambda: given.append("late"))
    await looks(0)
    assert given == []
    await looks(3)
    assert given == ["late"]


async def test_closing_gives_everything_back() -> None:
    """A gateway that ends leaves no slot counted."""
    engine, given = Engine(), []
    engine.held = engine.busy = 2
    slots = engine.lingering()
    for name in "ab":
        slots.add(60, lambda n=name: given.append(n))
    slots.close()
    assert given == ["a", "b"]
    assert len(slots) == 0


async def test_a_real_llamacpp_is_asked_for_its_slots(llama: LlamaServer) -> None:
    """While a real slot works the lingering one is held; when it is free, so are we."""
    given: list[str] = []
    async with watching(snapshot(llama.url, kind="llamacpp")) as (fleet, ledger):
        await until(lambda: ledger.accepts())
        ledger.running = (Holding("t", "k", "u", ServiceClass.INTERACTIVE, "m", "r1", 1, 0),)
        body = {"prompt": "x", "n_predict": 1900, "ignore_eos": True, "stream": True}
        async with (
            httpx.AsyncClient(base_url=llama.url, timeout=60) as client,
            client.stream("POST", "/completion", json=body) as answer,
        ):
            await anext(answer.aiter_raw())
            fleet.linger("r1", 60, lambda: given.append("free"))
            await looks(1)
            assert given == [] or not await asyncio.to_thread(llama.busy_slots)
        await until(lambda: given == ["free"])
        fleet.linger("unknown", 60, lambda: given.append("at once"))
        assert given[-1] == "at once"
