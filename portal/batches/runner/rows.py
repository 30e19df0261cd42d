"""Lets the event loop call the database: one thread for the lines, one for the result files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError, connection

from portal.batches import results

P = ParamSpec("P")
T = TypeVar("T")


class Rows:
    """Two threads with a connection each; a call is a function of `store` and its arguments."""

    def __init__(self) -> None:
        self.writes: set[asyncio.Task[None]] = set()  # result files being written
        self._database = ThreadPoolExecutor(1, thread_name_prefix="batch-rows")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="batch-files")

    async def do(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it in the thread of the lines."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._database, lambda: _guarded(act, *args, **kwargs))

    async def quietly(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do what the lease's end would do anyway, some seconds later, if it fails."""
        with contextlib.suppress(OperationalError, InterfaceError):
            await asyncio.shield(self.do(act, *args, **kwargs))

    def write_results(self, job_pk: int) -> None:
        """Begin to write the result files of a job."""
        task = asyncio.create_task(self._write(job_pk))
        self.writes.add(task)
        task.add_done_callback(self.writes.discard)

    async def _write(self, job_pk: int) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OperationalError, InterfaceError):
            await loop.run_in_executor(
                self._writer, lambda: _guarded(results.write_results, job_pk)
            )

    async def close(self) -> None:
        """Finish the writing and close both connections."""
        await asyncio.gather(*self.writes, return_exceptions=True)
        for pool in (self._database, self._writer):
            pool.submit(lambda: connection.close())  # or the connection pool loses a place
            pool.shutdown()


def _guarded(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a database call so that a broken connection does not outlive it.

    A whole connection is kept by its thread until the room closes: a check-out per call would
    cost a round trip each.
    """
    try:
        return act(*args, **kwargs)
    except (OperationalError, InterfaceError):
        connection.close()
        raise
