"""Slots and in-flight counters: whatever a request does, its slot comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault
Settled = Callable[[], None]


async def seen(true: Callable[[], bool]) -> None:
    """Wait for what a running request brings about."""
    await asyncio.to_thread(wait_until, true, 10, "it happens")


BAD = {
    "unknown_model": b'{"model":"nobody","messages":[{"role":"user","content":"x"}]}',
    "not_json": b"this is no JSON",
    "a_list": b"[1, 2]",
    "unknown_role": b'{"model":"witness","messages":[{"role":7,"content":"x"}]}',
    "no_messages": b'{"model":"witness"}',
    "empty": b"",
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_takes_no_slot(
    product: Product, client: Caller, keys: dict[str, str], settled: Settled, name: str
) -> None:
    """A request that fails validation is a 4xx in the known shape, and the next good one runs."""
    async with httpx.AsyncClient(base_url=product.url, verify=False) as plain:
        answer = await plain.post(
            "/v1/chat/completions",
            content=BAD[name],
            headers={
                "Authorization": f"Bearer {keys['single']}",
                "Content-Type": "application/json",
            },
        )
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert (await client.ask(keys["single"], chat("witness", f"good after {name}"))).whole
    settled()


async def test_a_long_stream_keeps_its_slot(
    client: Caller, witness: Witness, keys: dict[str, str], settled: Settled
) -> None:
    """Two streams slower than the heartbeat limit hold their cap until they end, whole."""
    witness.tell(rules={"slow/": {"decode_tps": 0.25, "tokens": 3}})
    slow = [
        asyncio.create_task(client.ask(keys["dora"], chat("witness", f"slow/{one}")))
        for one in range(2)
    ]
    await asyncio.sleep(1)
    third = await client.ask(keys["dora"], chat("witness", "slow third"))
    ends = await asyncio.gather(*slow)
    assert all(call.whole for call in [*ends, third])
    mine = [r for r in witness.records() if r.mark.startswith("slow")]
    assert checkers.caps_held([r for r in mine if r.owner == "slow"], {"slow": 2}) == []
    third_record = next(r for r in mine if r.mark == "slow third")
    assert third_record.arrived_s >= min(r.ended_s or 0 for r in mine if r is not third_record)
    settled()


async def test_looking_takes_no_slot(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str], settled: Settled
) -> None:
    """While a key with cap one streams, its models, limits and the status page are answered."""
    witness.tell(decode_tps=5, tokens=100)
    running = asyncio.create_task(client.ask(keys["single"], chat("witness", "looking")))
    await asyncio.sleep(0.5)
    for path in ("/v1/models", "/v1/key", "/healthz", "/readyz", "/status/"):
        answer = await client.get(path, keys["single"])
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:200]}"
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    settled()


@pytest.mark.parametrize("moment", ["before_first_byte", "between_chunks"])
async def test_a_client_that_leaves_frees_its_slot(
    client: Caller, witness: Witness, keys: dict[str, str], settled: Settled, moment: str
) -> None:
    """Whenever a client leaves, its slot is free within two seconds."""
    slow: dict[str, Any] = {"decode_tps": 10, "tokens": 1000}
    witness.tell(**(slow if moment == "between_chunks" else {"first_delay_s": 60}))
    call = asyncio.create_task(client.ask(keys["single"], chat("witness", f"{moment}/1")))
    await seen(lambda: len(witness.records(moment)) == 1)
    await asyncio.sleep(0.3)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    settled()


async def test_who_leaves_the_queue_never_reaches_the_engine(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str], settled: Settled
) -> None:
    """Five clients leave while they wait behind a long answer: the engine never hears of them."""
    witness.tell(first_delay_s=60)

    def ask(number: int) -> asyncio.Task[Call]:
        return asyncio.create_task(client.ask(keys["single"], chat("witness", f"left/{number}")))

    def waiting() -> int:
        return len(product.live()["queued"])

    holder = ask(0)
    await seen(lambda: len(witness.records("left")) == 1)
    others = [ask(number) for number in range(1, 6)]
    await seen(lambda: waiting() == 5)
    for call in others:
        call.cancel()
    await seen(lambda: waiting() == 0)
    holder.cancel()
    await asyncio.gather(holder, *others, return_exceptions=True)
    settled()
    assert [record.mark for record in witness.records("left")] == ["left/0"]


async def test_engine_errors_and_aborts_leak_nothing(
    client: Caller, witness: Witness, keys: dict[str, str], settled: Settled
) -> None:
    """Of 300 short requests a tenth fail at the engine and a tenth leave; nothing stays counted."""
    witness.tell(fail_status=500, fail_share=0.1, tokens=30)
    calls: list[Call] = []

    async def work(key: str, worker: int) -> None:
        for number in range(50):
            leave = 1 if number % 10 == 0 else -1
            body = chat("witness", f"many/{worker}-{number}")
            calls.append(await client.ask(key, body, leave_after=leave))

    owners = ["dora", "dora", "emil", "emil", "fritz", "fritz"]
    await asyncio.gather(*(work(keys[owner], at) for at, owner in enumerate(owners)))
    settled()
    assert checkers.all_ended(calls, may_break=False) == []
    assert checkers.nobody_elses(calls) == []
    assert sum(call.whole for call in calls) > 200
