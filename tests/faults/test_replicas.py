"""Replicas that fail in their own ways, and what the gateway says of them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.chat import Call, Caller, chat
from tests.rig.engine_script import Script
from tests.rig.network import free_port
from tests.rig.product import Product
from tests.rig.relay import Relay
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
MODEL = "trio"
REGISTER = """
from quotas.services import engines
for url in {urls}:
    engines.register(url=url, pool="trio", kind="vllm", slots=4)
"""


@pytest.fixture(scope="module")
def trio(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Witness]]:
    """Run three replicas of one model and register them."""
    folder = tmp_path_factory.mktemp("trio")
    engines = [Witness(folder, Script(model=MODEL, slots=4)).start() for _ in range(3)]
    script = REGISTER.format(urls=[engine.url for engine in engines])
    product.manage("shell", "--no-imports", "-c", script)  # three commands take three times as long
    yield engines
    for engine in engines:
        engine.stop()


def seen(product: Product, engine: Witness) -> dict[str, Any]:
    """Return what the gateway tells of an engine; {} while it does not know it."""
    rows = product.sql("SELECT public_id FROM quotas_replica WHERE url = %s", engine.url)
    found = [e for e in product.live()["engines"] if rows and e["replica_id"] == rows[-1][0]]
    return dict(found[0]) if found else {}


def wait_for(product: Product, engine: Witness, state: str, timeout_s: float) -> None:
    """Wait until the gateway sees the engine in this state."""
    told: Callable[[], bool] = lambda: seen(product, engine).get("state") == state  # noqa: E731
    wait_until(told, timeout_s, f"the engine is {state}")


async def ask_in_turn(client: Caller, keys: dict[str, str], mark: str, number: int) -> list[Call]:
    """Send chats of new conversations, two at a time."""
    calls: list[Call] = []
    for one in range(0, number, 2):
        pair = [
            client.ask(keys[owner], chat(MODEL, f"{mark}/{owner}-{one}"))
            for owner in ("dora", "emil")
        ]
        calls += await asyncio.gather(*pair)
    return calls


def tries(trio: list[Witness], mark: str) -> dict[str, int]:
    """Return how often each request reached an engine."""
    found: dict[str, int] = {}
    for engine in trio:
        for record in engine.records(mark):
            found[record.mark] = found.get(record.mark, 0) + 1
    return found


@pytest.mark.long
async def test_one_dead_one_frozen_one_moved(
    product: Product, client: Caller, trio: list[Witness], keys: dict[str, str]
) -> None:
    """
    Of three replicas one is killed, one is frozen, and the dead one comes back on another port:
    nobody loses an answer, none is tried more than once too often, and the new address has work
    within ten seconds.
    """
    for engine in trio:
        wait_for(product, engine, "up", 15)
    before = await ask_in_turn(client, keys, "calm", 20)
    trio[0].kill()
    trio[1].kill(signal.SIGSTOP)
    try:
        during = await ask_in_turn(client, keys, "storm", 20)
        wait_for(product, trio[0], "down", 15)
        wait_for(product, trio[1], "down", 15)
        after = await ask_in_turn(client, keys, "after", 20)
        trio[0].port = free_port()
        trio[0].start()
        product.manage("addengine", trio[0].url, "--slots", "4", "--json")
        registered_s = time.monotonic()
        while not trio[0].records("moved"):
            assert time.monotonic() < registered_s + 10, "the new address has no work"
            during += await ask_in_turn(client, keys, "moved", 6)
    finally:
        trio[1].kill(signal.SIGCONT)
    wait_for(product, trio[1], "up", 15)

    assert all(call.whole for call in [*before, *during, *after])
    assert max(tries(trio, "storm").values()) <= 2
    took_s = [
        sorted(call.ended_s - call.invoked_s for call in calls)[len(calls) // 2]
        for calls in (before, after)
    ]
    assert took_s[1] < 2 * took_s[0] + 0.1, "those who are well are slowed down"


async def test_a_restart_gives_no_negative_rates(
    product: Product, client: Caller, trio: list[Witness], keys: dict[str, str]
) -> None:
    """An engine whose counters begin again is a new one: rates stay at or above zero."""
    engine = trio[2]
    wait_for(product, engine, "up", 15)
    await ask_in_turn(client, keys, "counted", 10)
    engine.kill()
    engine.start()
    rates: list[float] = []

    def known_again() -> bool:
        told = seen(product, engine)
        rates.extend(told[n] for n in ("tokens_out_per_s", "tokens_in_per_s") if told.get(n))
        return bool(told.get("state") == "up" and told["completion_tokens_total"] == 0)

    wait_until(known_again, 15, "its numbers are those of the new life")
    await ask_in_turn(client, keys, "counted again", 10)
    time_up = time.monotonic() + 3
    while time.monotonic() < time_up:
        known_again()
        await asyncio.sleep(0.25)
    assert all(rate >= 0 for rate in rates)


async def test_slow_health_under_full_load_is_no_death(
    product: Product, client: Caller, trio: list[Witness], keys: dict[str, str]
) -> None:
    """
    An engine whose health page and metrics do not answer in time while it streams on all slots is
    busy and stays in rotation.
    """
    for engine in trio:
        wait_for(product, engine, "up", 15)
        engine.tell(decode_tps=5, tokens=50, health_delay_s=4.0, metrics="hang")
    asked = [
        asyncio.create_task(client.ask(keys[owner], chat(MODEL, f"full/{owner}-{number}")))
        for number in range(2)
        for owner in ("dora", "emil", "fritz")
    ]
    states: set[str] = set()
    while not all(call.done() for call in asked):
        states |= {str(seen(product, engine)["state"]) for engine in trio if engine.records("full")}
        await asyncio.sleep(0.3)
    calls = await asyncio.gather(*asked)

    assert all(call.whole for call in calls)
    assert states <= {"up", "busy"}, states
    for engine in trio:
        engine.reset()


@pytest.mark.long
async def test_a_hung_engine_with_good_health_leaves_rotation(
    product: Product, client: Caller, trio: list[Witness], keys: dict[str, str]
) -> None:
    """
    Tokens freeze while /health says 200: within a minute the engine is suspect, says why, and
    gets no new work; the others serve.
    """
    for engine in trio:
        wait_for(product, engine, "up", 15)
    trio[0].tell(hang_after=3)
    holding: list[asyncio.Task[Call]] = []
    while not trio[0].records("hung"):
        mark = f"hung/{len(holding)}"
        holding.append(asyncio.create_task(client.ask(keys["dora"], chat(MODEL, mark))))
        await asyncio.sleep(0.3)
    frozen_s = time.monotonic()
    await asyncio.to_thread(wait_for, product, trio[0], "suspect", 65)
    took_s = time.monotonic() - frozen_s
    known = len(trio[0].records())
    calls = await ask_in_turn(client, keys, "beside", 20)
    print(f"suspect after {took_s:.0f} s: {seen(product, trio[0])['note']}")
    for call in holding:
        call.cancel()
    await asyncio.gather(*holding, return_exceptions=True)
    trio[0].reset()

    assert took_s <= 60
    assert (
        "no progress" in seen(product, trio[0])["note"] or "up" in seen(product, trio[0])["state"]
    )
    assert all(call.whole for call in calls)
    assert len(trio[0].records()) == known
    async with asyncio.timeout(60):  # a request that dares to go there closes the matter
        while (await asyncio.to_thread(seen, product, trio[0]))["state"] != "up":
            await ask_in_turn(client, keys, f"again{time.monotonic_ns()}", 6)


@pytest.mark.long
async def test_two_minutes_without_a_link_double_nothing(
    product: Product, client: Caller, keys: dict[str, str], tmp_path: Path
) -> None:
    """
    While nothing gets through to an engine it is down and counted once; healed it is the same
    engine with the same slots, and serves.
    """
    model = "stalled"
    engine = Witness(tmp_path, Script(model=model, slots=4)).start()
    try:
        with Relay(("127.0.0.1", engine.port)) as link:
            (replica,) = product.engines({model: link.url}).values()

            def told() -> list[dict[str, Any]]:
                return [e for e in product.live()["engines"] if e["pool"] == model]

            wait_until(lambda: [e["state"] for e in told()] == ["up"], 15, "it is up")
            link.set(stall=True)
            healed_s = time.monotonic() + 120
            wait_until(lambda: [e["state"] for e in told()] == ["down"], 12, "it is down")
            while time.monotonic() < healed_s:
                assert [(e["replica_id"], e["slots"]) for e in told()] == [(replica, 4)]
                await asyncio.sleep(0.5)
            link.set()
            link.cut()
            wait_until(lambda: [e["state"] for e in told()] == ["up"], 15, "it is up again")
            assert [(e["replica_id"], e["slots"]) for e in told()] == [(replica, 4)]
            assert (await client.ask(keys["dora"], chat(model, "stalled/1"))).whole
    finally:
        engine.stop()
