"""One process that takes a batch from upload to end; a test has it end itself on the way.

`python -m tests.batches.act ROUTE`: `run`, or `cancel` to cancel after two lines. Who it acts for
and where comes from the environment.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup()

from portal.batches import results, services, submission  # noqa: E402
from portal.batches.models import BatchJob  # noqa: E402
from portal.batches.runner.room import Room  # noqa: E402
from portal.batches.states import JOB_ENDS  # noqa: E402
from portal.files.services import Receipt  # noqa: E402
from quotas.models import ApiKey  # noqa: E402
from tests.batches.helpers import ENDPOINT, jsonl, line  # noqa: E402

LINES = 8
LONGEST_S = 20.0


def content() -> bytes:
    """Return the lines, marked for the engine's books."""
    marks = [f"point{n}" for n in range(LINES)]
    return jsonl(
        line(mark, messages=[{"role": "user", "content": f"[mark:{mark}] hi"}]) for mark in marks
    )


def submit(key: ApiKey) -> BatchJob:
    """Upload and create."""
    with Receipt() as receipt:
        receipt.feed(content())
        file = receipt.accept(owner=key.owner, key=key, filename="in.jsonl")
    wanted = {"input_file_id": file.public_id, "endpoint": ENDPOINT, "completion_window": "24h"}
    return services.submit(key=key, request=submission.read(wanted), idempotency_key="point")


def run(job: BatchJob, route: str) -> None:
    """Work on the job until it has ended."""
    give_up = time.monotonic() + LONGEST_S
    cancelled = route != "cancel"

    def is_over() -> bool:
        return time.monotonic() > give_up

    async def work() -> None:
        nonlocal cancelled
        room = asyncio.create_task(Room(is_over).run())
        while not is_over():
            state, done = await asyncio.to_thread(_look, job)
            if not cancelled and done >= 2:
                cancelled = True
                await asyncio.to_thread(services.cancel, job=job)
            if state in JOB_ENDS:
                break
            await asyncio.to_thread(_write)
            await asyncio.sleep(0.05)
        room.cancel()

    asyncio.run(work())


def _look(job: BatchJob) -> tuple[str, int]:
    return BatchJob.objects.values_list("state", "completed").get(pk=job.pk)


def _write() -> None:
    for pk in results.jobs_to_write():
        results.write_results(pk)


if __name__ == "__main__":
    owner_key = ApiKey.objects.select_related("owner__group").get(public_id=os.environ["ACT_KEY"])
    run(submit(owner_key), sys.argv[1])
