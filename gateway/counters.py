"""What the books say was used this day and month, for counters Redis may have lost.

Rule 1: a limit whose counter is not known to the books' generation admits nothing; the answer is
503 `directory_unavailable`, never "go ahead".
Rule 2: a number is trusted for `TRUSTED_S`; it is a floor, so an old one is never too strict.
Rule 3: no request's task talks to Redis; all look-ups of one moment go into one MULTI.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from gateway import tasks
from gateway.errors import Unavailable
from quotas.snapshots.counters import USED, ZONE
from quotas.snapshots.directory import DIRECTORY

TRUSTED_S = 5.0
ANSWER_S = 1.0
KEPT = 50_000
RETRY_AFTER_S = 2

log = logging.getLogger("fairway.counters")


class Counters:
    """The published counters this process has asked for, kept for a few seconds."""

    def __init__(self, client: redis.Redis, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = client
        self._clock = clock
        self._zone = ""
        self._generation = ""
        self._known: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._serve(), name="counters")

    async def close(self) -> None:
        """Stop answering."""
        if self._task is not None:
            await tasks.end(self._task)
        await self._redis.aclose()

    def zone_at_hand(self, generation: str) -> str:
        """Return the time zone where nothing has to be waited for, else ""."""
        return self._zone if self._is_fresh(ZONE, generation) else ""

    def at_hand(self, names: tuple[str, ...], generation: str) -> dict[str, int] | None:
        """Return `floors` where nothing has to be waited for, None where something has."""
        if not generation or generation != self._generation:
            return None
        known, oldest_s, found = self._known, self._clock() - TRUSTED_S, {}
        for name in names:
            told = known.get(name)
            if told is None or told[0] < oldest_s:
                return None
            found[name] = told[1]
        return found

    async def zone(self, generation: str) -> str:
        """Return the time zone whose calendar names the windows."""
        await self._ensure([ZONE], generation)
        return self._zone

    async def floors(self, names: Iterable[str], generation: str) -> dict[str, int]:
        """Return what was used at least; raises when the books of this generation do not say."""
        wanted = list(names)
        await self._ensure(wanted, generation)
        return {name: self._known[name][1] for name in wanted}

    def _is_fresh(self, name: str, generation: str) -> bool:
        found = self._known.get(name)
        return (
            generation != ""
            and generation == self._generation
            and found is not None
            and self._clock() - found[0] <= TRUSTED_S
        )

    async def _ensure(self, names: list[str], generation: str) -> None:
        old = [name for name in names if not self._is_fresh(name, generation)]
        if old:
            waits = [self._want(name) for name in old]
            self._wake.set()
            # Shielded: others may wait for the same counter.
            await asyncio.gather(*(asyncio.shield(wait) for wait in waits))
        # One that is too old while Redis is away is as unknown as one that was never read.
        if not all(self._is_fresh(name, generation) for name in names):
            raise Unavailable(
                "What was used cannot be looked up at this moment; try again.",
                code="directory_unavailable",
                retry_after_s=RETRY_AFTER_S,
            )

    def _want(self, name: str) -> asyncio.Future[None]:
        if name not in self._wanted:
            self._wanted[name] = asyncio.get_running_loop().create_future()
        return self._wanted[name]

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted, self._wanted = self._wanted, {}
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._read([name for name in wanted if name != ZONE])
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("the counters cannot be read: %s", type(error).__name__)
            except Exception:
                log.exception("the counters hold something unreadable")
            finally:
                for future in wanted.values():
                    if not future.done():
                        future.set_result(None)

    async def _read(self, names: list[str]) -> None:
        began_s = self._clock()
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hget(DIRECTORY, "generation")
            pipe.hmget(USED, [ZONE, *names])
            answers: list[Any] = await pipe.execute()
        generation = answers[0].decode() if answers[0] else ""
        zone, *used = answers[1]
        if generation != self._generation:
            self._known.clear()
        if not generation or zone is None:
            self._generation = ""
            return
        self._generation, self._zone = generation, zone.decode()
        self._keep(ZONE, began_s, 0)
        for name, value in zip(names, used, strict=True):
            with contextlib.suppress(ValueError):
                self._keep(name, began_s, int(value or 0))

    def _keep(self, name: str, at_s: float, value: int) -> None:
        self._known.pop(name, None)
        self._known[name] = (at_s, value)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
