"""Everybody gets their own, however many commands to Redis lose their reader on the way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import redis

from tests.gateway.wire.stage import Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.relay import Relay
from tests.rig.witness import Witness

NOBODYS = (429, 503)  # the queue was full, or Redis too late: the answer is about nobody
LONG = [pytest.mark.long, pytest.mark.timeout(900)]  # 100,000 reads in all


# A request that is cancelled while it connects leaves its socket to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("reads", "seed"), [(400, 0), *(pytest.param(25_000, n, marks=LONG) for n in range(1, 5))]
)
async def test_a_cancelled_command_never_answers_the_next_reader(
    redis_server: str, tmp_path: Path, reads: int, seed: int
) -> None:
    """
    Two hundred clients behind a Redis 100 ms away ask for their own key or a chat and leave at
    random: nobody is ever told of another's key, or gets another's answer.
    """
    store = redis.Redis.from_url(redis_server.replace("db=0", "db=10"))
    store.flushdb()
    witness = Witness(tmp_path, Script(slots=64)).start()
    books = Books(store)
    books.engine(witness.url, slots=64)
    caps = {"in_flight": 20, "queued": 100}
    keys = [(f"own{number}", books.key(f"own{number}", **caps, person=caps)) for number in range(8)]
    wrong: list[str] = []
    told: Counter[int] = Counter()
    left = [reads]

    async def use(url: str, number: int) -> None:
        # A client each: one pool for all would look through all of their connections each time.
        async with httpx.AsyncClient(
            base_url=url, timeout=60, verify=False, trust_env=False
        ) as client:
            await read(client, number)

    async def read(client: httpx.AsyncClient, number: int) -> None:
        dice = random.Random(f"{seed}/{number}")
        owner, secret = keys[number % len(keys)]
        while left[0] > 0:
            left[0] -= 1
            if dice.random() < 0.15:
                mark = f"{owner}/{number}"
                body = chat(f"[mark:{mark}] x", max_tokens=2)
                asked = client.post("/v1/chat/completions", headers=bearer(secret), json=body)
            else:
                mark, asked = owner, client.get("/v1/key", headers=bearer(secret))
            task = asyncio.create_task(asked)
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.2)
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                answer = await task
                told[answer.status_code] += 1
                if answer.status_code not in NOBODYS and mark not in answer.text:
                    wrong.append(f"{mark} was told {answer.text[:300]}")

    with Relay(Path(urlsplit(redis_server).path)) as link:
        url = f"redis://127.0.0.1:{link.port}/10"
        gateway = GatewayProcess(tmp_path, url, {"LEDGER": "redis"}).start()
        try:
            gateway.wait_up()
            link.set(delay_s=0.05)  # each way
            await asyncio.gather(*(use(gateway.url, number) for number in range(200)))
            link.set()
            gateway.wait_settled(10)
        finally:
            gateway.stop()
            witness.stop()
    gc.collect()
    assert wrong == []
    assert told[200] > reads / 3
