"""People who chat: requests at random that fill a part of the slots, or people who never pause."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests.bench.batch.stage import MODEL


@dataclass
class Chatters:
    """Poisson arrivals of several people's keys, each answer's length log-normal.

    With `per_s` zero each person asks again as soon as the answer is there.
    """

    url: str
    secrets: list[str]
    per_s: float
    median: float
    sigma: float
    seed: int = 1
    waits_s: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Chatters:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(120)

    def check(self) -> None:
        """Fail unless nearly all were answered; one of a burst may be refused for a full queue."""
        told = Counter(self.statuses)
        assert told[200] > 0.98 * told.total(), told
        assert set(told) <= {200, 429}, told

    async def _live(self) -> None:
        dice = random.Random(self.seed)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=600, limits=limits) as client:
            if self.per_s:
                await self._arrive(client, dice)
            else:
                await asyncio.gather(*(self._talk(client, dice, key) for key in self.secrets))

    async def _arrive(self, client: httpx.AsyncClient, dice: random.Random) -> None:
        chats: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        while not self._stop.is_set():
            due += dice.expovariate(self.per_s)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            chats.add(asyncio.create_task(self._chat(client, dice, dice.choice(self.secrets))))
        await asyncio.gather(*chats)

    async def _talk(self, client: httpx.AsyncClient, dice: random.Random, secret: str) -> None:
        while not self._stop.is_set():
            await self._chat(client, dice, secret)

    async def _chat(self, client: httpx.AsyncClient, dice: random.Random, secret: str) -> None:
        tokens = max(1, round(self.median * dice.lognormvariate(0, self.sigma)))
        body = {
            "model": MODEL, "max_tokens": tokens,
            "messages": [{"role": "user", "content": "word " * 60}],
        }  # fmt: skip
        headers = {"authorization": f"Bearer {secret}"}
        answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        self.statuses.append(answer.status_code)
        wait_ms = answer.headers.get("x-fairway-queue-wait-ms")
        if wait_ms is not None:
            self.waits_s.append(float(wait_ms) / 1000)
