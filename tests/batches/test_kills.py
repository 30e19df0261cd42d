"""No line is lost, none is there twice, whatever dies: the whole product, killed part by part."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.batches.helpers import jsonl, line
from tests.rig.engine_script import Script
from tests.rig.product import Product, descendants
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Yield an engine on which a line takes a moment, so that kills find lines in flight."""
    folder: Path = tmp_path_factory.mktemp("engine")
    witness = Witness(folder, Script(slots=4, model="tiny", tokens=6, first_delay_s=0.4)).start()
    yield witness
    witness.stop()


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory, engine: Witness) -> Iterator[Product]:
    """Yield a product of this module's own: its parts die."""
    installed = Product(
        tmp_path_factory.mktemp("product"), engine.url, {"ENGINE_SLOTS": "4"}
    ).start()
    yield installed
    installed.stop()


class Batches:
    """The API of one key, patient while parts are away."""

    def __init__(self, product: Product, secret: str) -> None:
        self.client = httpx.Client(
            base_url=product.url, headers={"authorization": f"Bearer {secret}"}, timeout=20
        )

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def patiently(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask until somebody answers."""

        def answer() -> httpx.Response | None:
            try:
                response = self.client.request(method, path, **options)
            except httpx.HTTPError:
                return None
            return None if response.status_code >= 500 else response

        found: httpx.Response = wait_until(answer, 40, f"{method} {path} is answered", every_s=0.2)
        return found

    def submit(self, content: bytes) -> str:
        """Upload and create."""
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
        file = self.patiently("POST", "/v1/files", **form).json()
        body = {
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        headers = {"idempotency-key": file["id"]}
        batch = self.patiently("POST", "/v1/batches", json=body, headers=headers).json()
        return str(batch["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Return the Batch object."""
        found: dict[str, Any] = self.patiently("GET", f"/v1/batches/{batch_id}").json()
        return found

    def ended(self, batch_id: str, within_s: float) -> dict[str, Any]:
        """Wait for an end state."""
        wait_until(
            lambda: self.batch(batch_id)["status"] in ENDED, within_s, f"{batch_id} ends",
            every_s=0.3,
        )  # fmt: skip
        return self.batch(batch_id)

    def rows(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of both result files."""
        found = []
        for name in ("output_file_id", "error_file_id"):
            if batch[name]:
                text = self.patiently("GET", f"/v1/files/{batch[name]}/content").text
                found += [json.loads(row) for row in text.splitlines()]
        return found


def marked(owner: str, count: int) -> bytes:
    """Return lines that the engine's books tell apart."""
    return jsonl(
        line(f"l{n}", messages=[{"role": "user", "content": f"[mark:{owner}/l{n}] hello"}])
        for n in range(count)
    )


def kill_worker_child(product: Product) -> None:
    """Kill one process of the worker's pool; its parent lives on."""
    parent = product.pid("worker")
    children = [p.pid for p in descendants(parent)] if parent else []
    if children:
        os.kill(random.choice(children), signal.SIGKILL)


SHORT = ("worker", "child", "valkey", "flush", "gateway", "postgres", "worker")
LONG = ("worker", "child") * 5 + ("valkey",) * 3 + ("postgres", "gateway") * 2 + ("flush",)
CASES = [
    pytest.param(SHORT, 70, id="short"),
    pytest.param(LONG, 500, id="long", marks=[pytest.mark.long, pytest.mark.timeout(900)]),
]


def let_parts_die(
    product: Product, api: Batches, batch_id: str, faults: tuple[str, ...], pause_s: float
) -> int:
    """Kill one part after another while the batch runs; return how many died."""
    for number, fault in enumerate(faults):
        time.sleep(pause_s)
        if api.batch(batch_id)["status"] in ENDED:
            return number
        wait_until(
            lambda: all(product.pid(part) for part in ("worker", "valkey", "postgres", "gateway")),
            60, "the parts are back",
        )  # fmt: skip
        if fault == "child":
            kill_worker_child(product)
        elif fault == "flush":
            with product.redis() as link:
                link.flushall()
        else:
            product.kill(fault)
    return len(faults)


@pytest.mark.parametrize(("faults", "lines"), CASES)
def test_a_batch_survives_the_death_of_every_part(
    product: Product, engine: Witness, faults: tuple[str, ...], lines: int
) -> None:
    """
    With worker, its children, Valkey, PostgreSQL and gateway killed and the broker emptied while
    it runs, each custom_id is in the results exactly once, and the engine saw a line at most once
    more than faults hit it.
    """
    owner = f"killed{lines}"
    dice = random.Random(20261129)
    shuffled = tuple(dice.sample(faults, len(faults)))
    with Batches(product, product.key(owner, "batch")) as api:
        batch_id = api.submit(marked(owner, lines))
        hits = let_parts_die(product, api, batch_id, shuffled, pause_s=0.8)
        batch = api.ended(batch_id, 240)
        rows = api.rows(batch)

    assert Counter(row["custom_id"] for row in rows) == Counter(f"l{n}" for n in range(lines))
    assert batch["status"] == "completed", batch
    assert batch["request_counts"] == {"total": lines, "completed": lines, "failed": 0}, rows
    assert {row["response"]["status_code"] for row in rows} == {200}
    served = Counter(record.mark for record in engine.records(owner))
    assert hits >= 4
    assert max(served.values()) <= 1 + hits
    assert sum(served.values()) <= lines + hits * 8
