"""Memory stays flat: what a line costs does not depend on how long it is."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from portal.batches import results
from portal.batches.models import BatchJob
from portal.files.services import Receipt
from tests.batches.helpers import ApiClient, line, lines

pytestmark = pytest.mark.django_db(transaction=True)
FEW, MANY, SIZE = 400, 2000, 4096
MOST_PER_LINE = 1024  # bytes; the index of a line, not the line


def content(count: int) -> Iterator[bytes]:
    """Yield lines of about `SIZE` bytes."""
    text = "x" * SIZE
    for number in range(count):
        yield json.dumps(line(f"l{number}", messages=[{"role": "user", "content": text}])).encode()
        yield b"\n"


def peak(act: Callable[[], object]) -> int:
    """Return the most memory Python held at once for the act."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def slope(act: Callable[[int], object]) -> float:
    """Return how much memory each further line costs."""
    act(FEW)  # whatever is loaded once is loaded now
    few, many = peak(lambda: act(FEW)), peak(lambda: act(MANY))
    return (many - few) / (MANY - FEW)


def test_an_upload_costs_its_index_only(api: ApiClient) -> None:
    """8 MB of lines pass through a few hundred kilobytes."""

    def receive(count: int) -> None:
        with Receipt() as receipt:
            for piece in content(count):
                receipt.feed(piece)
            receipt.accept(owner=api.key.owner, key=api.key, filename="big.jsonl")

    assert slope(receive) < MOST_PER_LINE


def test_writing_results_costs_nothing_per_line(api: ApiClient) -> None:
    """The output file is written row by row."""

    def write(count: int) -> None:
        job = BatchJob.objects.create(
            owner=api.key.owner, key=api.key, name="big", endpoint="/v1/completions", model="tiny",
            completion_window="24h", expires_at="2099-01-01T00:00Z", total=count, completed=count,
            state="finalizing",
        )  # fmt: skip
        with connection.cursor() as cursor:
            cursor.execute(
                'INSERT INTO batch_item (job_id, line_no, run_order, custom_id, "offset", length,'
                " state, attempt, failures, lease_owner, problem, finished_at)"
                " SELECT %s, n, n, 'c' || n, 0, 1, 'done', 1, 0, '', '', now()"
                " FROM generate_series(1, %s) AS n",
                [job.pk, count],
            )
            cursor.execute(
                "INSERT INTO batch_result (item_id, line) SELECT id, repeat('x', %s)::bytea"
                " FROM batch_item WHERE job_id = %s",
                [SIZE, job.pk],
            )
        assert results.write_results(job.pk)

    assert slope(write) < MOST_PER_LINE


def test_creating_a_batch_costs_nothing_per_line(api: ApiClient) -> None:
    """Lines become rows inside the database."""
    file_id = api.upload(lines(MANY)).json()["id"]
    few_id = api.upload(lines(FEW)).json()["id"]
    api.create(few_id)
    few, many = peak(lambda: api.create(few_id)), peak(lambda: api.create(file_id))

    assert (many - few) / (MANY - FEW) < 50
