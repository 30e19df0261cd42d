"""Several gateway processes on one Redis ledger: one queue, one cap, one truth."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator

import httpx
import pytest
import redis

from tests.gateway.wire.stage import Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness, peak


class Fleet:
    """Three gateways in front of one engine."""

    def __init__(self, gateways: list[GatewayProcess], books: Books, witness: Witness) -> None:
        self.gateways, self.books, self.witness = gateways, books, witness

    def settle(self) -> None:
        """Wait until nothing runs or waits anywhere."""
        self.gateways[0].wait_settled(8)

    async def fire(self, secret: str, count: int, mark: str) -> list[int]:
        """Send requests to random gateways at once and return their statuses."""
        dice = random.Random(mark)

        async def one(client: httpx.AsyncClient) -> int:
            url = f"{dice.choice(self.gateways).url}/v1/chat/completions"
            body = chat(f"[mark:{mark}/1] x", max_tokens=3, stream=dice.random() < 0.5)
            answer = await client.post(url, headers=bearer(secret), json=body)
            return answer.status_code

        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as c:
            return await asyncio.gather(*(one(c) for _ in range(count)))


@pytest.fixture(scope="module")
def fleet(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Run them."""
    folder = tmp_path_factory.mktemp("together")
    url = redis_server.replace("db=0", "db=15")
    store = redis.Redis.from_url(url)
    store.flushdb()
    witness = Witness(folder, Script(slots=8)).start()
    books = Books(store)
    books.engine(witness.url, slots=8)
    settings = {"LEDGER": "redis", "GATEWAY_PROCESSES": "3"}
    gateways = [GatewayProcess(folder, url, settings).start() for _ in range(3)]
    for gateway in gateways:
        gateway.wait_up()

        def ready(gateway: GatewayProcess = gateway) -> bool:
            return httpx.get(f"{gateway.url}/readyz").status_code == 200

        wait_until(ready, 20, "the ledger is open")
    yield Fleet(gateways, books, witness)
    for gateway in gateways:
        gateway.stop()
    witness.stop()


async def test_the_cap_holds_over_all_processes(fleet: Fleet) -> None:
    """A key with three slots never has a fourth request at the engine, whichever door it uses."""
    secret = fleet.books.key(in_flight=3, queued=200, person={"in_flight": 3, "queued": 200})
    fleet.witness.tell(first_delay_s=0.05)

    statuses = await fleet.fire(secret, 60, "cap")

    assert statuses == [200] * 60
    records = fleet.witness.records("cap")
    assert len(records) == 60
    assert peak(records) == 3
    fleet.settle()


async def test_each_request_leaves_one_record(fleet: Fleet) -> None:
    """Whichever process served it, its record is in the stream once, with the engine's numbers."""
    secret = fleet.books.key("carol", in_flight=8, queued=50, person={"in_flight": 8, "queued": 50})
    key = f"k{len(fleet.books.keys)}"

    await fleet.fire(secret, 30, "rows")

    def rows() -> list[str]:
        return [r.request_id for r in fleet.books.records() if r.key_id == key]

    wait_until(lambda: len(rows()) == 30, 5, "thirty records")
    assert len(set(rows())) == 30
    fleet.settle()


def test_a_killed_gateway_holds_nothing(fleet: Fleet) -> None:
    """kill -9 of one process: its slots are free within the limit, its request is interrupted."""
    secret = fleet.books.key("dave", in_flight=1, person={"in_flight": 1})
    victim = fleet.gateways.pop()
    fleet.witness.tell(hang_after=2)
    link = httpx.Client(timeout=60)
    with link.stream(
        "POST", f"{victim.url}/v1/chat/completions",
        headers=bearer(secret), json=chat("[mark:victim/1] x", stream=True),
    ) as answer:  # fmt: skip
        lines = answer.iter_lines()
        next(lines)
        victim.stop(signal.SIGKILL)
    link.close()
    fleet.witness.reset()

    assert asyncio.run(fleet.fire(secret, 1, "heir")) == [200]
    wait_until(
        lambda: "interrupted" in {r.outcome for r in fleet.books.records()}, 8, "an interrupted row"
    )
    fleet.settle()
