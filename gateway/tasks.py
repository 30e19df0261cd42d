"""Tasks that nobody waits for, and the end of those that go on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

AGAIN_S = 0.25
_running: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive


def start(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as a task and hold the task until it ends."""
    task = loop.create_task(coroutine)
    _running.add(task)
    task.add_done_callback(_running.discard)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended.

    Until Python 3.12 a cancel that meets the result of a `wait_for` is lost, and redis-py has one
    in each command: cancelled once, one task of hundreds would go on, and a stop wait for it.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
