"""Slots and in-flight counters: whatever a request does, its slot comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.crowd import capped
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
    "empty_in_chunks": b"",
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_request_takes_no_slot(
    product: Product, client: Caller, keys: dict[str, str], settled: Settled, name: str
) -> None:
    """A request that fails validation is a 4xx in the known shape, and the next good one runs."""

    async def nothing() -> AsyncIterator[bytes]:
        for piece in ():
            yield piece

    async with httpx.AsyncClient(base_url=product.url, verify=False) as plain:
        answer = await plain.post(
            "/v1/chat/completions",
            content=nothing() if name == "empty_in_chunks" else BAD[name],
            headers={
                "Authorization": f"Bearer {keys['single']}",
                "Content-Type": "application/json",
            },
        )
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert (await client.ask(keys["single"], chat("witness", f"good after {name}"))).whole
    settled()


SILENT = [(16, 1), pytest.param(20, 3, marks=[pytest.mark.long])]


@pytest.mark.parametrize(("silence_s", "tokens"), SILENT)
async def test_a_silent_stream_keeps_its_slot(
    client: Caller, witness: Witness, keys: dict[str, str], settled: Settled,
    silence_s: int, tokens: int,
) -> None:  # fmt: skip
    """
    Two streams that say nothing for three heartbeat limits and more hold their cap until they
    end, whole; the third request waits all that time.
    """
    mute = f"mute{silence_s}"
    witness.tell(rules={f"{mute}/": {"decode_tps": 1 / silence_s, "tokens": tokens}})
    slow = [
        asyncio.create_task(client.ask(keys["dora"], chat("witness", f"{mute}/{one}")))
        for one in range(2)
    ]
    await seen(lambda: len(witness.records(mute)) == 2)
    third = await client.ask(keys["dora"], chat("witness", f"{mute} third"))
    ends = await asyncio.gather(*slow)
    assert [call.whole for call in ends] == [True, True]
    assert third.whole or third.code == "queue_timeout"  # chats wait for a minute
    records = witness.records(mute)
    assert checkers.caps_held(records, {mute: 2}) == []
    started = [r for r in witness.records() if r.mark == f"{mute} third"]
    assert all(r.arrived_s >= min(m.ended_s or 0 for m in records) for r in started)
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
    """Twenty clients leave while they wait behind a long answer: the engine never sees them."""
    witness.tell(first_delay_s=60)

    def ask(number: int) -> asyncio.Task[Call]:
        return asyncio.create_task(client.ask(keys["single"], chat("witness", f"left/{number}")))

    def waiting() -> int:
        return len(product.live()["queued"])

    holder = ask(0)
    await seen(lambda: len(witness.records("left")) == 1)
    others = [ask(number) for number in range(1, 21)]
    await seen(lambda: waiting() == 20)
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


def resident_kib(pid: int) -> int:
    """Return how much memory a process has in use."""
    status = Path("/proc", str(pid), "status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_twenty_thousand_requests_leave_no_trace(
    product: Product, witness: Witness, keys: dict[str, str], settled: Settled
) -> None:
    """
    Of 20,000 requests a tenth fail at the engine and a tenth leave: nothing is held afterwards,
    and the gateway is no larger than after the first 2,000.
    """
    witness.tell(fail_status=500, fail_share=0.1, tokens=4)
    gateway = product.pid("gateway")
    secrets = await asyncio.to_thread(
        capped, product, {f"trace{one}": ("interactive", 4) for one in range(4)}
    )

    async def work(owner: str, count: int) -> None:
        async with Caller(product.url) as own:
            for number in range(count):
                body = chat("witness", f"{owner}/{number}", max_tokens=4)
                await own.ask(secrets[owner], body, leave_after=1 if number % 10 == 0 else -1)

    async def all_work(count: int) -> int:
        await asyncio.gather(*(work(owner, count // 8) for owner in secrets for _ in range(2)))
        settled()
        return resident_kib(gateway)

    early_kib = await all_work(2_000)
    late_kib = await all_work(18_000)
    print(f"resident after 2,000: {early_kib} KiB, after 20,000: {late_kib} KiB")
    assert product.pid("gateway") == gateway
    assert late_kib <= early_kib * 1.1
