"""The official clients, unmodified, and our command line, against the whole product."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.batches.helpers import jsonl, line
from tests.rig import clients
from tests.rig.product import Product
from tests.rig.seeding import ROOT
from tests.rig.serving import serve
from tests.rig.witness import Witness

pytestmark = pytest.mark.journey

JOURNEY = """
text = "".join(json.dumps({
    "custom_id": f"l{n}", "method": "POST", "url": "/v1/chat/completions",
    "body": {"model": given["model"], "messages": [{"role": "user", "content": f"say {n}"}]},
}) + "\\n" for n in range(12))
file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
same = client.files.wait_for_processing(file.id, poll_interval=0.1)
made = [client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions",
                              completion_window="24h", metadata={"n": str(n)}) for n in range(3)]
deadline = time.time() + 60
batches = made
while time.time() < deadline and any(b.status != "completed" for b in batches):
    time.sleep(0.2)
    batches = [client.batches.retrieve(b.id) for b in made]
last = batches[-1]
rows = [json.loads(r) for r in client.files.content(last.output_file_id).text.splitlines()]
listed = [b.id for b in client.batches.list(limit=2)]
files = [f.id for f in client.files.list(purpose="batch_output", limit=2)]

def error_of(act):
    try:
        act()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, bool(error.request_id)]
    return None

errors = [
    error_of(lambda: client.batches.retrieve("batch_none")),
    error_of(lambda: client.files.create(file=("x", b"not json\\n"), purpose="batch")),
    error_of(lambda: client.files.create(file=b"{}", purpose="assistants")),
    error_of(lambda: client.batches.create(input_file_id="file-none", completion_window="24h",
                                           endpoint="/v1/chat/completions")),
    error_of(lambda: client.batches.cancel(last.id)),
    error_of(lambda: client.with_options(api_key="fw_bat_wrong").files.list()),
]
fresh = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions",
                              completion_window="1h")
cancelled = client.batches.cancel(fresh.id).status
while client.batches.retrieve(fresh.id).status == "cancelling" and time.time() < deadline:
    time.sleep(0.2)
deleted = client.files.delete(file.id).deleted
answer(
    status=same.status, ids=[b.id for b in made], ends=[b.status for b in batches],
    counts=last.request_counts.completed, rows=sorted(r["custom_id"] for r in rows),
    listed=listed, files=len(set(files)), errors=errors, cancelled=cancelled, deleted=deleted,
    why=getattr(last, "name", None),
)
"""


# The oldest and the newest in every run, those between them in the long one.
@pytest.mark.parametrize(
    "version",
    [
        one
        if one in (clients.VERSIONS[0], clients.VERSIONS[-1])
        else pytest.param(one, marks=pytest.mark.long)
        for one in clients.VERSIONS
    ],
)
def test_the_official_client_goes_all_the_way(
    product: Product, witness: Witness, version: str
) -> None:
    """Upload, create, poll, page, content, cancel, delete; every error typed, with its code."""
    name = f"batch-client-{version}"
    client = clients.environment(version)
    witness.tell(first_delay_s=0.3)  # so that the last batch can be cancelled before it ends

    told = client.run(
        JOURNEY, base_url=f"{product.url}/v1", api_key=product.key(name, "batch"),
        model=witness.script.model,
    )  # fmt: skip

    assert told["status"] == "processed"
    assert told["ends"] == ["completed"] * 3
    assert told["counts"] == 12
    assert told["rows"] == sorted(f"l{n}" for n in range(12))
    assert told["listed"] == told["ids"][::-1]
    assert told["files"] == 3
    assert told["errors"] == [
        ["NotFoundError", 404, "batch_not_found", True],
        ["BadRequestError", 400, "invalid_json_line", True],
        ["BadRequestError", 400, "invalid_request", True],
        ["BadRequestError", 400, "file_not_found", True],
        ["BadRequestError", 400, "batch_not_cancellable", True],
        ["AuthenticationError", 401, "invalid_api_key", True],
    ]
    assert told["cancelled"] in {"cancelling", "cancelled"}
    assert told["deleted"] is True


def test_the_command_line_goes_all_the_way(
    product: Product, witness: Witness, tmp_path: Path
) -> None:
    """Estimate, submit and watch, list, fetch; what a server refuses is shown with its line."""
    source = tmp_path / "lines.jsonl"
    source.write_bytes(jsonl(line(f"c{n}", model=witness.script.model) for n in range(9)))
    secret = product.key("batch-cli", "batch")

    def fairway(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from fairway_cli.app import main; main()", *arguments],
            env={
                "PYTHONPATH": str(ROOT / "clients" / "fairway_cli" / "src"),
                "OPENAI_BASE_URL": f"{product.url}/v1",
                "OPENAI_API_KEY": secret,
            },
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    plan = fairway("estimate", str(source), "--json")
    ended = fairway("submit", str(source), "--watch", "--json")
    batch = json.loads(ended.stdout)
    fetched = fairway("fetch", batch["id"], "-o", str(tmp_path / "results"))
    listed = fairway("list")
    source.write_bytes(b"{}\n")
    refused = fairway("submit", str(source))

    assert json.loads(plan.stdout)["lines"] == 9
    assert (ended.returncode, batch["status"]) == (0, "completed")
    rows = (tmp_path / "results" / f"{batch['id']}-output.jsonl").read_text().splitlines()
    assert sorted(json.loads(row)["custom_id"] for row in rows) == [f"c{n}" for n in range(9)]
    assert fetched.returncode == 0
    assert batch["id"][:12] in listed.stdout
    assert refused.returncode == 1
    assert "custom_id must be a text" in refused.stderr


class Plain(BaseHTTPRequestHandler):
    """A server with OpenAI's routes and nothing else, whose batches tell no counts at first."""

    said: ClassVar[list[str]] = []
    looks: ClassVar[int] = 0

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Take a file; make a batch; know no estimate."""
        self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/files":
            self._say(200, {"id": "file-1"})
        elif self.path == "/v1/batches":
            self._say(200, {"id": "batch_1", "status": "validating", "request_counts": None})
        else:
            self._say(404, {"error": {"message": "Invalid URL", "code": None}})

    def do_GET(self) -> None:
        """Run for one look, then be done."""
        if self.path == "/v1/batches/batch_1":
            type(self).looks += 1
            is_done = self.looks > 1
            counts = {"total": 1, "completed": int(is_done), "failed": 0}
            self._say(200, {"id": "batch_1", "request_counts": counts, "output_file_id": None,
                            "status": "completed" if is_done else "in_progress"})  # fmt: skip
        else:
            self._say(404, {"error": {"message": "Invalid URL", "code": None}})

    def do_DELETE(self) -> None:
        """Delete a file."""
        self._say(200, {"deleted": True})

    def _say(self, status: int, body: dict[str, Any]) -> None:
        self.said.append(f"{self.command} {self.path}")
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def test_the_command_line_needs_none_of_our_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server with OpenAI's routes alone an estimate and early results are missed in words."""
    monkeypatch.syspath_prepend(str(ROOT / "clients" / "fairway_cli" / "src"))
    from fairway_cli.app import app

    source = tmp_path / "lines.jsonl"
    source.write_bytes(jsonl([line("only")]))
    with ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        serve(server)
        settings = {"FAIRWAY_URL": f"http://127.0.0.1:{server.server_port}/v1", "FAIRWAY_KEY": "sk"}

        def fairway(*arguments: str) -> Result:
            return CliRunner().invoke(app, arguments, env=settings)

        planned = fairway("estimate", str(source))
        submitted = fairway("submit", str(source))
        early = fairway("fetch", "batch_1", "-o", str(tmp_path))
        watched = fairway("watch", "batch_1")
        server.shutdown()

    assert [r.exit_code for r in (planned, submitted, early, watched)] == [0, 0, 0, 0]
    assert "gives no estimates" in planned.stderr
    assert "DELETE /v1/files/file-1" in Plain.said
    assert "fairway watch batch_1" in submitted.stdout
    assert "no results yet" in early.stdout
    assert "1 done, 0 failed, of 1 lines" in watched.stdout
