"""A process may end at any named point: the batch ends once all the same, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from portal.batches import ending, results
from portal.batches.models import BatchItem, BatchJob, BatchResult
from portal.failpoints import EXIT_STATUS
from portal.files.models import StoredFile
from tests.batches import act
from tests.batches.helpers import ApiClient
from tests.batches.stage import outcome, run_room
from tests.rig.engine_script import Script
from tests.rig.seeding import ROOT
from tests.rig.witness import Witness

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.fault]

POINTS = [
    ("run", "file_before_rename", 1),
    ("run", "file_in_place", 1),
    ("run", "job_stored", 1),
    ("run", "line_claimed", 2),
    ("run", "line_answered", 2),
    ("run", "line_committed", 2),
    ("run", "file_in_place", 2),  # the result file's
    ("run", "files_written", 1),
    ("run", "job_ended", 1),
    ("cancel", "job_cancelling", 1),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Yield the engine that stands where the gateway would."""
    script = Script(slots=2, tokens=2, first_delay_s=0.05)
    witness = Witness(tmp_path_factory.mktemp("engine"), script).start()
    yield witness
    witness.stop()


def end_at(
    point: str, route: str, passes: int, api: ApiClient, engine: Witness, folder: Path
) -> int:
    """Let a process of its own take the batch as far as the point; return its exit status."""
    database = connection.settings_dict
    environment = {
        **os.environ,
        "DATABASE_URL": os.environ["DATABASE_URL"].replace("/fairway?", f"/{database['NAME']}?"),
        "GATEWAY_URL": engine.url,
        "DATA_DIR": str(folder),
        "ACT_KEY": api.key.public_id,
        "FAILPOINTS": f"{point}:exit:{passes}",
        "BATCH_LEASE_S": "1",
        "LOG_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.batches.act", route],
        cwd=ROOT, env=environment, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in {0, EXIT_STATUS}, done.stderr
    return done.returncode


@pytest.mark.parametrize(("route", "point", "passes"), POINTS)
def test_the_batch_ends_once_wherever_the_process_ends(
    api: ApiClient, engine: Witness, settings: Any, tmp_path: Path,
    route: str, point: str, passes: int,
) -> None:  # fmt: skip
    """
    After the death of its process at any point, a batch is either not there at all or reaches one
    end state, with each custom_id in one result file exactly once and the counts right.
    """
    settings.GATEWAY_URL, settings.MEDIA_ROOT = engine.url, tmp_path / "files"
    settings.BATCH_LEASE_S = 1
    before = Counter(record.mark for record in engine.records())
    assert end_at(point, route, passes, api, engine, tmp_path) == EXIT_STATUS
    if not BatchJob.objects.exists():
        assert StoredFile.objects.count() == 0
        assert point.startswith("file_")
        return

    recover()

    job = BatchJob.objects.get()
    assert job.state == ("cancelled" if route == "cancel" else "completed")
    batch, output, errors = outcome(api, job.public_id)
    assert Counter(row["custom_id"] for row in output + errors) == Counter(
        f"point{number}" for number in range(act.LINES)
    )
    assert batch["request_counts"]["completed"] == len(output)
    assert not BatchResult.objects.exists()
    served = Counter(record.mark for record in engine.records()) - before
    assert max(served.values()) <= 2


def recover() -> None:
    """Do what sweeper and a new runner do: take the dead one's lines, go on, write, tidy up."""
    give_up = time.monotonic() + 20
    while BatchJob.objects.filter(state__in=BatchJob.LIVE).exists():
        assert time.monotonic() < give_up, list(BatchItem.objects.values("state", "lease_end"))
        ending.reclaim()
        for pk in results.jobs_to_write():
            results.write_results(pk)
        if BatchJob.objects.filter(state__in=["queued", "in_progress"]).exists():
            run_room(lambda: not BatchItem.objects.filter(state="queued").exists(), longest_s=15)
        # A dead writer's claim ends with time as well; the test does not wait five minutes.
        BatchJob.objects.filter(state__in=BatchJob.LIVE).update(writer_until=None)
        time.sleep(0.1)
    results.drop_forgotten_results()
