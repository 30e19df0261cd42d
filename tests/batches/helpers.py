"""Small makers the tests of files and batches share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.test import Client

from quotas.models import User
from quotas.services import keys

MODEL = "tiny"
ENDPOINT = "/v1/chat/completions"


def line(custom_id: Any, *, model: str = MODEL, url: str = ENDPOINT, **body: Any) -> dict[str, Any]:
    """Return one good line; anything of its body may be overridden."""
    request = {"model": model, "messages": [{"role": "user", "content": f"Say {custom_id}"}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": request | body}


def jsonl(rows: Iterable[Any]) -> bytes:
    """Return rows as the bytes of a file."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def lines(count: int, **body: Any) -> bytes:
    """Return a good file of `count` lines."""
    return jsonl(line(f"line-{number}", **body) for number in range(count))


class ApiClient:
    """Talks to the portal's /v1 with a key, inside the test's own transaction."""

    def __init__(self, owner: User, service_class: str = "batch", name: str = "") -> None:
        issued = keys.issue(
            owner=owner, name=name or f"{owner.username} {service_class}",
            service_class=service_class,
        )  # fmt: skip
        self.key, self.secret = issued.key, issued.secret
        self.client = Client(headers={"authorization": f"Bearer {issued.secret}"})

    def upload(self, content: bytes, **fields: str) -> Any:
        """POST /v1/files."""
        from django.core.files.uploadedfile import SimpleUploadedFile

        form = {"purpose": "batch", **fields, "file": SimpleUploadedFile("in.jsonl", content)}
        return self.client.post("/v1/files", form)

    def create(self, file_id: str, *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        """POST /v1/batches."""
        body = {
            "input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h", **fields,
        }  # fmt: skip
        return self.client.post("/v1/batches", json.dumps(body), "application/json",
                                headers=headers or {})  # fmt: skip

    def submit(self, content: bytes, **fields: Any) -> str:
        """Upload and create; return the batch's id."""
        answer = self.create(self.upload(content).json()["id"], **fields)
        assert answer.status_code == 200, answer.content
        return str(answer.json()["id"])

    def get(self, path: str, **headers: str) -> Any:
        """GET."""
        return self.client.get(path, headers=headers)

    def post(self, path: str) -> Any:
        """POST with the empty JSON body the client sends."""
        return self.client.post(path, b"", "application/json")

    def delete(self, path: str) -> Any:
        """DELETE."""
        return self.client.delete(path)
