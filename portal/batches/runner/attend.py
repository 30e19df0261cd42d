"""Starts the room in this worker process and watches over it for one slice.

Celery forks its processes from one parent: the byte below is shared by all of them, so that the
parent, which alone hears of the shutdown, can tell its children to give their lines back.
"""

from __future__ import annotations

import asyncio
import mmap
import threading
import time

import structlog
import uvloop
from celery.signals import worker_process_init, worker_shutting_down

from portal.batches.runner.room import Room

log = structlog.get_logger(__name__)

SLICE_S = 240.0  # well under the broker's visibility timeout of 600 s
GLANCE_S = 0.25
_stopping = mmap.mmap(-1, 1)
_lock = threading.Lock()
_room: threading.Thread | None = None


@worker_shutting_down.connect
def _on_shutdown(**_: object) -> None:
    _stopping[0] = 1


@worker_process_init.connect
def _on_fork(**_: object) -> None:
    global _room
    _room = None


def is_stopping() -> bool:
    """Tell whether this worker has been asked to end."""
    return _stopping[0] == 1


async def _work() -> None:
    await Room(is_stopping).run()


def _live() -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_work())
    except Exception:
        log.exception("room_broke")  # leases run out and another runner goes on


def is_open() -> bool:
    """Tell whether a room lives in this process."""
    return _room is not None and _room.is_alive()


def attend(slice_s: float = SLICE_S) -> bool:
    """Open the room if there is none and watch it; True: it still has work after the slice."""
    global _room
    with _lock:
        if not is_open():
            _room = threading.Thread(target=_live, name="batch-room", daemon=True)
            _room.start()
    until = time.monotonic() + slice_s
    while time.monotonic() < until and is_open() and not is_stopping():
        time.sleep(GLANCE_S)
    if is_stopping() and _room is not None:
        _room.join(10.0)
    return is_open()
