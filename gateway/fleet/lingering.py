"""Keeps a slot of llama.cpp counted until the engine itself has let go of it.

llama.cpp hears that a caller has left only between two batches: at once while it writes, seconds
later while it reads a long prompt. A slot given back sooner would go to somebody whose request then
waits inside the engine, where no order holds and no hang-up is heard.

Rule 1: what the engine says of its slots counts. Its silence means that it is reading a batch.
Rule 2: never shorter than `LEAST_S`, for the engine may not have read the hang-up yet; never longer
than the caller allows: what is still busy then is foreign load.
Rule 3: one task for each replica asks, however many linger there, and none when nobody does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from gateway.ledger.interface import Ledger

LEAST_S = 0.1
EVERY_S = 0.2

log = logging.getLogger("fairway.lingering")

Count = Callable[[], Awaitable[int | None]]  # None: unknown at this moment


@dataclass(frozen=True, slots=True)
class Leftover:
    """One call of ours that is over, whose slot may still be busy."""

    since_s: float
    until_s: float
    release: Callable[[], None]


class Lingering:
    """The slots of one replica that are ours in the books and busy in the engine.

    `busy` asks the engine how many of its slots work, `held` asks the ledger how many are counted
    there, for all gateways and those that linger included.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, busy: Count, held: Count) -> None:
        self._loop = loop
        self._busy = busy
        self._held = held
        self._left: list[Leftover] = []
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._left)

    def add(self, most_s: float, release: Callable[[], None]) -> None:
        """Call `release` once the engine has let go, after `most_s` at the latest."""
        now_s = self._loop.time()
        self._left.append(Leftover(now_s, now_s + most_s, release))
        if self._task is None:
            self._task = self._loop.create_task(self._watch(), name="lingering slots")

    def close(self) -> None:
        """Give everything back now."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._give(len(self._left))

    async def _watch(self) -> None:
        wait_s = LEAST_S
        while self._left:
            await asyncio.sleep(wait_s)
            wait_s = EVERY_S
            try:
                free = await self._free()
            except Exception:
                log.exception("lingering slots cannot be judged")
                free = 0
            now_s = self._loop.time()
            old = sum(one.since_s + LEAST_S <= now_s for one in self._left)
            late = sum(one.until_s <= now_s for one in self._left)
            self._left.sort(key=lambda one: one.until_s)
            self._give(max(late, min(free, old)))
        self._task = None

    async def _free(self) -> int:
        """Return how many of those that linger the engine has let go of."""
        # The ledger is asked first: who starts in between is busy and not yet counted, which
        # only makes us wait once more.
        held = await self._held()
        busy = await self._busy()
        return 0 if held is None or busy is None else max(0, held - busy)

    def _give(self, number: int) -> None:
        given, self._left = self._left[:number], self._left[number:]
        for one in given:
            one.release()


class Lingerers:
    """What lingers on each replica."""

    def __init__(self, ledger: Ledger, busy: Callable[[str], Awaitable[int | None]]) -> None:
        self._ledger = ledger
        self._busy = busy
        self._of: dict[str, Lingering] = {}

    def add(self, replica_id: str, most_s: float, release: Callable[[], None]) -> None:
        """Call `release` once the replica has let go, after `most_s` at the latest."""
        found = self._of.get(replica_id)
        if found is None:
            busy, held = partial(self._busy, replica_id), partial(self._held, replica_id)
            found = self._of[replica_id] = Lingering(asyncio.get_running_loop(), busy, held)
        found.add(most_s, release)

    def forget(self, replica_id: str) -> None:
        """Give back what lingers on a replica that is no more."""
        found = self._of.pop(replica_id, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Give everything back."""
        for replica_id in tuple(self._of):
            self.forget(replica_id)

    async def _held(self, replica_id: str) -> int:
        view = await self._ledger.glance()
        return sum(one.weight for one in view.running if one.replica_id == replica_id)
