"""Runs a coroutine at once; only what really has to wait becomes a task.

Most requests find their body, key and limits at hand. Written as one coroutine the steps read in
order, and run this way they cost no task and no turn of the loop.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

_running: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive


def start(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run until it ends or waits; `asyncio.timeout` and the like need a task and must not come
    before its first wait.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return
    keep(loop.create_task(_go_on(coroutine, waits_for)))


def keep(task: asyncio.Task[None]) -> None:
    """Hold a task until it ends."""
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _go_on(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _rest(coroutine, waits_for)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Hand every wait of the coroutine to the task this runs in, and every answer back."""
    while True:
        trouble: BaseException | None = None
        answer = None
        try:
            answer = yield waits_for
        except BaseException as error:
            trouble = error
        try:
            waits_for = coroutine.throw(trouble) if trouble else coroutine.send(answer)
        except StopIteration:
            return
