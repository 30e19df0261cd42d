"""Uploads are read while they arrive; who may not upload is told before the body is taken."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from portal.files.models import StoredFile
from portal.files.streaming import StreamingUploads
from tests.batches.helpers import ApiClient, lines

pytestmark = pytest.mark.django_db(transaction=True)
BOUNDARY = "frontier"


def form(content: bytes) -> bytes:
    """Return a form with purpose and file, as the client sends it."""
    return (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()  # fmt: skip


class Upload:
    """One upload through the ASGI application, sent piece by piece."""

    def __init__(self, secret: str, *, length: int | None = None) -> None:
        self.pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.received = 0
        headers = [
            (b"host", b"testserver"),
            (b"authorization", f"Bearer {secret}".encode()),
            (b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode()),
        ]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        self.scope = {
            "type": "http", "method": "POST", "path": "/v1/files", "headers": headers,
            "query_string": b"", "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        self.task = asyncio.create_task(StreamingUploads()(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        message = await self.pieces.get()
        self.received += 1
        return message

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def put(self, body: bytes, *, more: bool = True) -> None:
        """Let a piece arrive."""
        await self.pieces.put({"type": "http.request", "body": body, "more_body": more})

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return status and body."""
        await asyncio.wait_for(self.task, 20)
        body = b"".join(m.get("body", b"") for m in self.sent)
        return self.sent[0]["status"], json.loads(body)


def left_in(folder: Path) -> list[Path]:
    """Return every file below the folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


async def until(true: Any) -> None:
    """Wait until something is true."""
    for _ in range(400):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("never became true")


async def test_the_file_grows_while_it_arrives(api: ApiClient, files_folder: Path) -> None:
    """What has arrived is on the shelf's draft before the rest has been sent."""
    content = form(lines(5000))
    upload = Upload(api.secret, length=len(content))
    middle = len(content) // 2
    await upload.put(content[:middle])

    def draft_size() -> int:
        return sum(part.stat().st_size for part in files_folder.glob("incoming/*.part"))

    await until(lambda: draft_size() > middle // 2)
    assert not upload.sent
    await upload.put(content[middle:], more=False)
    status, body = await upload.answer()

    assert (status, body["lines"], body["bytes"]) == (200, 5000, len(lines(5000)))


async def test_without_a_key_nothing_of_the_body_is_taken(pool: Any) -> None:
    """401 comes before the first byte of the file is read."""
    upload = Upload("fw_bat_nonsense", length=10**9)

    status, body = await upload.answer()

    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert upload.received == 0


async def test_a_client_that_leaves_leaves_nothing_behind(
    api: ApiClient, files_folder: Path
) -> None:
    """A broken upload has neither row nor file."""
    upload = Upload(api.secret, length=10**6)
    await upload.put(form(lines(100))[:3000])
    await upload.pieces.put({"type": "http.disconnect"})

    await asyncio.wait_for(upload.task, 20)

    assert not await asyncio.to_thread(StoredFile.objects.exists)
    assert not left_in(files_folder)


async def test_a_body_without_a_length_is_taken(api: ApiClient) -> None:
    """A client that sends in chunks tells no length."""
    upload = Upload(api.secret)
    content = form(lines(3))
    for at in range(0, len(content), 50):
        await upload.put(content[at : at + 50])
    await upload.put(b"", more=False)

    assert (await upload.answer())[0] == 200


async def test_the_limit_cuts_an_endless_upload(
    api: ApiClient, settings: Any, files_folder: Path
) -> None:
    """Beyond the limit the answer is 413 at once, with nothing kept."""
    settings.BATCH_MAX_BYTES = 100_000
    upload = Upload(api.secret, length=10**9)
    await upload.put(form(b"").removesuffix(f"\r\n--{BOUNDARY}--\r\n".encode()))
    for _ in range(10):
        await upload.put(b" " * 64_000)

    status, body = await upload.answer()

    assert (status, body["error"]["code"]) == (413, "file_too_large")
    assert upload.received < 10
    assert not left_in(files_folder)
