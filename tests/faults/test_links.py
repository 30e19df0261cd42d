"""The links between the parts: late, stalled, cut and torn to single bytes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from portal import stores
from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product
from tests.rig.relay import Relay
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Relay, Any]]:
    """Run a Valkey of this module's own behind a relay."""
    from portal.stores.embedded import start_valkey

    folder = tmp_path_factory.mktemp("linked")
    server = start_valkey(folder, durable=False)
    with Relay(stores.run_dir(folder) / "valkey.sock") as relay:
        yield relay, server
    server.stop()


@pytest.fixture(scope="module")
def linked(
    fresh: Callable[..., Product], running_witness: Witness, link: tuple[Relay, Any]
) -> Product:
    """Run two gateways whose only way to Redis is the relay."""
    relay, _ = link
    address = f"redis://127.0.0.1:{relay.port}/0"
    return fresh(running_witness.url, REDIS_URL=address, GATEWAY_PROCESSES="2")


@pytest.fixture(scope="module")
def keys(linked: Product) -> dict[str, str]:
    """Return keys of it."""
    return linked.keys(iris="interactive", jan="interactive", karl="batch")


@pytest.fixture
def relay(link: tuple[Relay, Any]) -> Iterator[Relay]:
    """Return the relay before Redis, healed after the test."""
    yield link[0]
    link[0].set()


async def work(
    product: Product, keys: dict[str, str], calls: list[Call], ended: Callable[[], bool]
) -> None:
    """Chat with every key until told to end; some requests are left, at random moments."""
    dice = random.Random(5)

    async def use(owner: str, key: str) -> None:
        async with Caller(product.url, timeout_s=60) as client:
            while not ended():
                leave = dice.choice((-1, -1, 0, 1, 3))
                body = chat("witness", f"{owner}/{time.monotonic_ns()}")
                calls.append(await client.ask(key, body, leave_after=leave))
                await asyncio.sleep(0.02)

    await asyncio.gather(*(use(o, k) for o, k in keys.items() for _ in range(2)))


def is_settled(product: Product) -> bool:
    """Answer whether the ledger is open and nothing is held or queued."""
    live = product.live()
    return bool(live["open"] and not live["running"] and not live["queued"])


FAULTS: dict[str, dict[str, Any]] = {
    "late": {"delay_s": 0.1},
    "stalled": {"stall": True},
    "single bytes": {"one_byte": True},
    "replies lost": {"drop_replies": True},
    "reset": {"reply_bytes": 500, "reset": True},
    "refused": {"refuse": True},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bad_link_to_redis_costs_no_truth(
    linked: Product, witness: Witness, relay: Relay, keys: dict[str, str], fault: str
) -> None:
    """
    While the link to Redis is bad requests wait or get 503; caps hold, answers keep to their
    owners, no slot is lost, and everything is normal within 15 s of its healing.
    """
    witness.tell(decode_tps=100, tokens=8)
    calls: list[Call] = []
    began_s = time.monotonic()
    end_s = began_s + 4.5
    working = asyncio.create_task(work(linked, keys, calls, lambda: time.monotonic() > end_s))
    await asyncio.sleep(1)
    relay.set(**FAULTS[fault])
    if fault in {"reset", "refused"}:
        relay.cut(reset=True)
    await asyncio.sleep(3)
    relay.set()
    if fault in {"replies lost", "stalled"}:
        relay.cut()  # as a peer does that has waited long enough
    healed_s = time.monotonic()
    await asyncio.wait_for(working, 90)

    async with Caller(linked.url) as client:
        while True:
            last = await client.ask(keys["iris"], chat("witness", f"iris/healed {fault}"))
            if last.whole:
                break
            assert time.monotonic() < healed_s + 15, (last.status, last.body)
            await asyncio.sleep(0.3)
    wait_until(lambda: is_settled(linked) and witness.idle(), 15, "no slot is held")
    mine = [r for r in witness.records() if r.owner in keys and r.arrived_s >= began_s]
    assert checkers.caps_held(mine, dict.fromkeys(keys, 2)) == []
    assert checkers.all_ended(calls, may_break=False) == []
    assert checkers.nobody_elses(calls) == []
    assert {call.status for call in calls if call.broke != "left"} <= {200, 429, 503}
    assert sum(call.whole for call in calls) > 5
    slowest_s = max(call.ended_s - call.invoked_s for call in calls)
    felt_s = {"late": 0.3, "single bytes": 0.05}.get(fault, 2.0)
    assert slowest_s > felt_s, "the fault was not felt"


async def test_a_bad_link_to_an_engine_is_seen_and_counted(
    product: Product, witness: Witness
) -> None:
    """An answer cut on its way from the engine is never taken for whole, by client or books."""
    keys = await asyncio.to_thread(product.keys, lena="interactive")
    with Relay(("127.0.0.1", witness.port)) as bad:
        product.engines({"far": bad.url})
        witness.tell(tokens=40)
        async with Caller(product.url) as client:
            wait_until(lambda: product.get("/readyz") == 200, 5, "ready")
            for fault in ({"one_byte": True}, {"delay_s": 0.05}):
                bad.set(**fault)
                call = await client.ask(keys["lena"], chat("far", f"lena/{next(iter(fault))}"))
                assert call.whole, (fault, call.status, call.body[:300])
            bad.set()
            for reset in (False, True):
                bad.set(reply_bytes=2000, reset=reset)
                mark = f"lena/cut {reset}"
                call = await client.ask(keys["lena"], chat("far", mark))
                assert not call.whole
                (row,) = product.usage(mark)
                assert row["outcome"] == "failed"
                assert 0 < row["completion_tokens"] < 40
