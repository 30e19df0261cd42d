"""The batch API as a person of patience uses it, whatever dies meanwhile."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.batches.helpers import MODEL, jsonl, line
from tests.rig.product import Product
from tests.rig.waiting import wait_until

ENDED = ("completed", "failed", "expired", "cancelled")


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


def marked(owner: str, count: int, model: str = MODEL) -> bytes:
    """Return lines that the engine's books tell apart."""
    return jsonl(
        line(
            f"l{n}",
            model=model,
            messages=[{"role": "user", "content": f"[mark:{owner}/l{n}] hello"}],
        )
        for n in range(count)
    )
