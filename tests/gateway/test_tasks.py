"""Tasks end when they are told to."""

from __future__ import annotations

import asyncio
import contextlib

from gateway import tasks


async def test_a_task_that_lost_a_cancel_is_ended_all_the_same() -> None:
    """What goes on after its first cancel, as a lost one lets it, ends with the next."""

    async def deaf_once() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    task = asyncio.create_task(deaf_once())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await tasks.end(task)
    assert task.cancelled()
