"""Rules of the runner: what happens to lines between the table and the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.batches.helpers import ApiClient, jsonl, line, lines
from tests.batches.stage import run_room, state_of
from tests.batches.test_files_api import content_of
from tests.rig.engine_script import Script
from tests.rig.witness import Witness

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def engine(tmp_path: Path, settings: Any) -> Any:
    """Yield a witness engine; the runner takes it for the gateway."""
    witness = Witness(tmp_path / "engine", Script(slots=8)).start()
    settings.GATEWAY_URL = witness.url
    yield witness
    witness.stop()


def rows_of(api: ApiClient, file_id: str | None) -> list[Any]:
    """Return the rows of a result file."""
    if file_id is None:
        return []
    return [json.loads(r) for r in content_of(api.get(f"/v1/files/{file_id}/content")).splitlines()]


def test_each_line_ends_once_in_one_of_the_two_files(api: ApiClient, engine: Witness) -> None:
    """Good lines are in the output file, refused ones in the error file, none twice."""
    engine.tell(rules={"bad": {"fail_status": 400, "fail_body": '{"error":{"code":"x"}}'}})
    rows = [line(f"l{n}", messages=[{"role": "user", "content": f"[mark:l{n}] hi"}])
            for n in range(20)]  # fmt: skip
    rows.append(line("refused", messages=[{"role": "user", "content": "[mark:bad] hi"}]))
    batch_id = api.submit(jsonl(rows))

    run_room()

    batch = api.get(f"/v1/batches/{batch_id}").json()
    assert batch["status"] == "completed", batch
    assert batch["request_counts"] == {"total": 21, "completed": 20, "failed": 1}
    output = rows_of(api, batch["output_file_id"])
    errors = rows_of(api, batch["error_file_id"])
    assert [row["custom_id"] for row in output] == [f"l{n}" for n in range(20)]
    assert [(row["custom_id"], row["response"]["status_code"]) for row in errors] == [
        ("refused", 400)
    ]
    assert len(engine.records()) == 21
    assert state_of(batch_id) == "completed"


assert lines  # used by tests to come
