"""The results of a batch so far: from its rows while it runs, from its file once it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

from portal.batches.models import BatchItem, BatchJob
from portal.batches.states import ItemState
from portal.files.models import StoredFile
from portal.files.views import as_download
from portal.openai_api import connections
from portal.openai_api.errors import NotFound

PIECE = 200  # lines read at once


def download(job: BatchJob, *, errors: bool) -> StreamingHttpResponse:
    """Return the output lines, or the error lines, as a download."""
    file: StoredFile | None = job.error_file if errors else job.output_file
    if file is not None:
        return as_download(file)
    if job.state not in BatchJob.LIVE:
        raise NotFound("There is no such result file, or it has expired.", code="file_not_found")
    states = [ItemState.FAILED] if errors else [ItemState.DONE]
    response = StreamingHttpResponse(_lines(job.pk, states), content_type="application/jsonl")
    name = f"{job.public_id}-{'errors' if errors else 'output'}-so-far.jsonl"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


async def _lines(job_pk: int, states: list[ItemState]) -> AsyncIterator[bytes]:
    after = 0
    while piece := await sync_to_async(_piece)(job_pk, states, after):
        after = piece[-1][0]
        yield b"".join(bytes(line) + b"\n" for _, line in piece)


def _piece(
    job_pk: int, states: list[ItemState], after: int
) -> list[tuple[int, bytes | memoryview]]:
    """Return the next lines; short queries, so that a slow reader holds nothing open."""
    rows = BatchItem.objects.filter(
        job=job_pk, state__in=states, line_no__gt=after, result__isnull=False
    ).order_by("line_no")
    piece = list(rows.values_list("line_no", "result__line")[:PIECE])
    connections.give_back()  # a slow reader holds none
    return piece
