"""Tasks that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive


def start(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine as a task and hold the task until it ends."""
    task = loop.create_task(coroutine)
    _running.add(task)
    task.add_done_callback(_running.discard)
