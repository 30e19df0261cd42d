"""Keeps replicas free of work while somebody measures them, on every gateway process.

In Redis: `fairway:hold:<replica id>`, JSON of `Hold`, with an expiry of a few seconds that the
measuring process renews. When it dies the card is given back by itself; when Redis is away the
hold ends no later than it would have expired.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import redis.asyncio as redis
from redis.exceptions import RedisError

from gateway import tasks
from gateway.fleet.prober import Fleet

PREFIX = "fairway:hold:"
LEASE_S = 6.0
POLL_S = 0.5
ANSWER_S = 1.0

log = logging.getLogger("fairway.holds")


@dataclass(frozen=True, slots=True)
class Hold:
    """Who holds a replica, why, and until when that is expected to last."""

    run: str
    why: str
    until: float  # Unix seconds


class AlreadyHeld(Exception):
    """Somebody else holds the replica."""


class Holds:
    """The holds of this installation, followed by one task."""

    def __init__(
        self,
        client: redis.Redis,
        fleet: Fleet,
        *,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = POLL_S,
    ) -> None:
        self._redis = client
        self._fleet = fleet
        self._clock = clock
        self._poll_s = poll_s
        self._seen: dict[str, Hold] = {}
        self._seen_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow the holds from now on."""
        self._task = asyncio.create_task(self._follow(), name="holds")

    async def close(self) -> None:
        """Stop following."""
        if self._task is not None:
            await tasks.end(self._task)
        await self._redis.aclose()

    async def take(self, replica_id: str, hold: Hold) -> None:
        """Take or renew a hold; raises `AlreadyHeld` when somebody else has it."""
        key, value = PREFIX + replica_id, json.dumps(asdict(hold))
        lease_ms = round(LEASE_S * 1000)
        if not await self._redis.set(key, value, px=lease_ms, nx=True):
            held = _read(await self._redis.get(key))
            if held is not None and held.run != hold.run:
                raise AlreadyHeld(held.why)
            await self._redis.set(key, value, px=lease_ms)
        await self.look([replica_id])

    async def give_back(self, replica_id: str, run: str) -> None:
        """End a hold; that of somebody else stays."""
        key = PREFIX + replica_id
        held = _read(await self._redis.get(key))
        if held is not None and held.run == run:
            await self._redis.delete(key)
        await self.look([replica_id])

    async def look(self, more: Iterable[str] = ()) -> None:
        """Read all holds once and tell the fleet."""
        names = {r.snapshot.replica_id for r in self._fleet.replicas()} | set(more)
        ordered = sorted(names)
        values = await self._redis.mget([PREFIX + name for name in ordered]) if ordered else []
        found = zip(ordered, map(_read, values), strict=True)
        self._seen = {name: hold for name, hold in found if hold is not None}
        self._seen_s = self._clock()
        self._tell()

    def _tell(self) -> None:
        self._fleet.hold({name: (hold.until, hold.why) for name, hold in self._seen.items()})

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self.look()
            except (RedisError, OSError, TimeoutError):
                if self._clock() - self._seen_s > LEASE_S and self._seen:
                    self._seen = {}
                    self._tell()
            except Exception:
                log.exception("the holds cannot be read")
            await asyncio.sleep(self._poll_s)


def _read(raw: bytes | str | None) -> Hold | None:
    if raw is None:
        return None
    try:
        return Hold(**json.loads(raw))
    except (ValueError, TypeError):
        return None
