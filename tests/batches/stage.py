"""Runs rooms inside a test, against a witness engine that stands where the gateway would."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from django.db import connection

from portal.batches import results
from portal.batches.models import BatchJob
from portal.batches.runner.room import Room
from portal.batches.states import JOB_ENDS
from tests.batches.helpers import ApiClient
from tests.batches.test_files_api import content_of


def run_room(until: Callable[[], bool] | None = None, longest_s: float = 30.0) -> None:
    """Run one room until `until` says so; without it, until every job has ended."""
    give_up = time.monotonic() + longest_s

    async def work() -> None:
        halted = asyncio.Event()
        room = Room(lambda: time.monotonic() > give_up or halted.is_set())
        watcher = asyncio.create_task(_watch(until or all_ended, halted))
        await room.run()
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)

    asyncio.run(work())
    assert time.monotonic() <= give_up, "the room did not come to rest"


async def _watch(until: Callable[[], bool], halted: asyncio.Event) -> None:
    def ask() -> bool:
        try:
            return until()
        finally:
            connection.close()  # of this thread

    while not await asyncio.to_thread(ask):  # noqa: ASYNC110  (rows set no event)
        await asyncio.sleep(0.05)
    halted.set()


def all_ended() -> bool:
    """Tell whether every job is in an end state."""
    return not BatchJob.objects.exclude(state__in=JOB_ENDS).exists()


def job_of(public_id: str) -> BatchJob:
    """Return a job as the database has it now."""
    return BatchJob.objects.get(public_id=public_id)


def write_all_results() -> None:
    """Do what the sweeper does for jobs whose lines have ended."""
    for pk in results.jobs_to_write():
        results.write_results(pk)


def rows_of(api: ApiClient, file_id: str | None) -> list[Any]:
    """Return the rows of a result file."""
    if file_id is None:
        return []
    return [json.loads(r) for r in content_of(api.get(f"/v1/files/{file_id}/content")).splitlines()]


def outcome(api: ApiClient, batch_id: str) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Return the Batch object, its output rows and its error rows."""
    batch = api.get(f"/v1/batches/{batch_id}").json()
    return batch, rows_of(api, batch["output_file_id"]), rows_of(api, batch["error_file_id"])
