"""Runs rooms inside a test, against a witness engine that stands where the gateway would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from portal.batches.models import BatchJob
from portal.batches.runner.room import Room


def run_room(until: Callable[[], bool] | None = None, longest_s: float = 30.0) -> None:
    """Run one room until it has nothing left to do, or until `until` says so."""
    give_up = time.monotonic() + longest_s

    def is_stopping() -> bool:
        return time.monotonic() > give_up

    async def work() -> None:
        room = Room(lambda: is_stopping() or halted.is_set())
        watcher = asyncio.create_task(_watch(until, halted)) if until else None
        await room.run()
        if watcher:
            watcher.cancel()

    halted = asyncio.Event()
    asyncio.run(work())
    assert time.monotonic() <= give_up, "the room did not come to rest"


async def _watch(until: Callable[[], bool], halted: asyncio.Event) -> None:
    while not await asyncio.to_thread(until):  # noqa: ASYNC110  (rows set no event)
        await asyncio.sleep(0.05)
    halted.set()


def state_of(public_id: str) -> str:
    """Return a job's state as the database has it now."""
    return BatchJob.objects.values_list("state", flat=True).get(public_id=public_id)
