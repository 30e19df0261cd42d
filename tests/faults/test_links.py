"""The links between the parts: late, stalled, cut and torn to single bytes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import redis

from portal import stores
from portal.stores.embedded import start_postgres, start_valkey
from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.entries import entries_of
from tests.rig.product import Product
from tests.rig.relay import Relay
from tests.rig.seeding import seed
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness, peak

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Relay, Any]]:
    """Run a Valkey of this module's own behind a relay."""
    folder = tmp_path_factory.mktemp("linked")
    server = start_valkey(folder, durable=False)
    with Relay(stores.run_dir(folder) / "valkey.sock") as relay:
        yield relay, server
    server.stop()


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Relay, str]]:
    """Run a PostgreSQL of this module's own behind a relay; with it comes its own address."""
    folder = tmp_path_factory.mktemp("books")
    seed(folder)
    server = start_postgres(folder, durable=False)
    with Relay(stores.run_dir(folder) / ".s.PGSQL.5432") as relay:
        yield relay, server.url
    server.stop()


@pytest.fixture(scope="module")
def linked(
    fresh: Callable[..., Product], running_witness: Witness,
    link: tuple[Relay, Any], books: tuple[Relay, str],
) -> Product:  # fmt: skip
    """Run two gateways whose only ways to Redis and to PostgreSQL are relays."""
    return fresh(
        running_witness.url,
        REDIS_URL=f"redis://127.0.0.1:{link[0].port}/0",
        DATABASE_URL=f"postgres://fairway@127.0.0.1:{books[0].port}/fairway?sslmode=disable",
        GATEWAY_PROCESSES="2",
    )


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
    "stalled": {"stall": True},
    "single bytes": {"one_byte": True},
    "replies lost": {"drop_replies": True},
    "reset": {"reply_bytes": 500, "reset": True},
    "refused": {"refuse": True},
}


def often_and_rarely(*rare: str) -> list[Any]:
    """Return the faults, those that teach least beside the others for the long run only."""
    return [pytest.param(fault, marks=pytest.mark.long) if fault in rare else fault
            for fault in FAULTS]  # fmt: skip


@pytest.mark.parametrize("fault", often_and_rarely("single bytes", "refused"))
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
    assert any(call.whole for call in calls)
    slowest_s = max(call.ended_s - call.invoked_s for call in calls)
    felt_s = {"single bytes": 0.05}.get(fault, 2.0)
    assert slowest_s > felt_s, "the fault was not felt"


@pytest.mark.parametrize("number", [40, pytest.param(100, marks=pytest.mark.long)])
async def test_a_slow_link_to_redis_loses_no_release(
    linked: Product, witness: Witness, relay: Relay, link: tuple[Relay, Any], number: int
) -> None:
    """
    Streams are left by the dozen at random moments over a link that is 300 ms late, while the key
    stays busy: soon after, the ledger holds what the engine runs, and the key never went idle.
    """
    (key,) = (await asyncio.to_thread(linked.keys, **{f"nora{number}": "interactive"})).values()
    witness.tell(decode_tps=20, tokens=30)
    relay.set(delay_s=0.15)
    dice, ended = random.Random(2), False

    async def keep_busy() -> list[Call]:
        calls = []
        async with Caller(linked.url) as client:
            while not ended:
                calls.append(await client.ask(key, chat("witness", f"nora-busy/{len(calls)}")))
                await asyncio.sleep(0.25)
        return calls

    async def leave(one: int) -> None:
        async with Caller(linked.url) as client:
            asked = client.ask(key, chat("witness", f"nora-leaver/{one}"))
            with suppress(TimeoutError):
                await asyncio.wait_for(asked, dice.uniform(0.05, 1.2))

    busy = asyncio.create_task(keep_busy())
    for first in range(0, number, 5):
        await asyncio.gather(*(leave(first + one) for one in range(5)))
    left_s = time.monotonic()

    def held() -> int:
        with redis.Redis.from_url(link[1].url) as direct:
            return sum(entry.held for entry in entries_of(direct))

    def is_true() -> bool:
        """Answer whether ledger and engine agree, and only the busy client is left."""
        return held() <= 1 and witness.counters()["running"] <= 1

    await asyncio.to_thread(wait_until, is_true, 5, "the ledger holds what runs", 0.02)
    print(f"true again {time.monotonic() - left_s:.2f} s after the last has left")
    ended = True
    calls = await busy
    assert [(call.status, call.code) for call in calls if not call.whole] == []
    records = [r for r in witness.records() if r.owner in ("nora-busy", "nora-leaver")]
    assert peak(records) <= 2


PAGE_WITHIN_S = 15


@pytest.mark.parametrize("fault", often_and_rarely("single bytes", "replies lost", "refused"))
async def test_a_bad_link_to_the_books_stops_no_chat(
    linked: Product, witness: Witness, books: tuple[Relay, str], keys: dict[str, str], fault: str
) -> None:
    """
    While the link to PostgreSQL is bad every chat is answered; afterwards pages are served within
    15 s and each chat has its one row.
    """
    way, address = books
    witness.tell(decode_tps=0, tokens=8)
    calls: list[Call] = []
    began_s = time.monotonic()

    async def use(owner: str) -> None:
        async with Caller(linked.url) as client:
            while time.monotonic() < began_s + 3:
                mark = f"{owner}/books-{fault}-{len(calls)}-{time.monotonic_ns()}"
                calls.append(await client.ask(keys[owner], chat("witness", mark)))
                await asyncio.sleep(0.05)

    working = [asyncio.create_task(use(owner)) for owner in keys]
    await asyncio.sleep(0.5)
    way.set(**FAULTS[fault])
    if fault in {"reset", "refused"}:
        way.cut(reset=True)
    looking = asyncio.create_task(
        asyncio.to_thread(linked.get, "/accounts/login/", timeout=PAGE_WITHIN_S)
    )
    await asyncio.gather(*working)
    way.set()
    if fault in {"replies lost", "stalled"}:
        way.cut()  # as a peer does that has waited long enough
    healed_s = time.monotonic()
    assert await looking in {0, 200, 500, 503}
    wait_until(
        lambda: linked.get("/accounts/login/", timeout=5) == 200, PAGE_WITHIN_S, "pages are served"
    )
    print(f"{fault}: {len(calls)} chats, pages again after {time.monotonic() - healed_s:.1f} s")
    assert [(call.status, call.code) for call in calls if not call.whole] == []
    assert len(calls) > 10

    def rows() -> list[int]:
        with psycopg.connect(address, autocommit=True) as direct:
            found = direct.execute(
                "SELECT client_request_id, count(*) FROM usage_event"
                " WHERE client_request_id = ANY(%s) GROUP BY 1", [[call.mark for call in calls]],
            ).fetchall()  # fmt: skip
        return [number for _, number in found]

    wait_until(lambda: rows() == [1] * len(calls), 30, "each chat has its row")


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
