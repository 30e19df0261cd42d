"""Rules of /v1/files."""

from __future__ import annotations

from typing import Any

import pytest

from portal.files.models import StoredFile
from tests.batches.helpers import ApiClient, jsonl, line, lines


def content_of(answer: Any) -> bytes:
    """Return the body of a streamed answer, asynchronous or not."""
    return b"".join(answer) if not answer.is_async else b"".join(_collect(answer))


def _collect(answer: Any) -> list[bytes]:
    import asyncio

    async def read() -> list[bytes]:
        return [piece async for piece in answer]

    return asyncio.run(read())


@pytest.mark.django_db(transaction=True)
def test_a_good_file_comes_back_byte_for_byte(api: ApiClient) -> None:
    """What was uploaded is what is downloaded, whatever the client says it accepts."""
    content = b"\xef\xbb\xbf" + lines(3).replace(b"\n", b"\r\n") + b"\r\n"

    stored = api.upload(content).json()
    answer = api.get(f"/v1/files/{stored['id']}/content", accept="application/binary")

    assert (stored["object"], stored["status"], stored["lines"]) == ("file", "processed", 3)
    assert content_of(answer) == content


def test_every_bad_line_is_named_and_nothing_is_kept(api: ApiClient) -> None:
    """A file with bad lines is refused whole, with the number of each line."""
    good = line("a")
    answer = api.upload(jsonl([good, [1], good, {**good, "custom_id": "b", "method": "GET"}]))

    error = answer.json()["error"]
    assert answer.status_code == 400
    assert [(e["line"], e["code"]) for e in error["errors"]["data"]] == [
        (2, "invalid_json_line"), (3, "duplicate_custom_id"), (4, "invalid_method"),
    ]  # fmt: skip
    assert not StoredFile.objects.exists()
