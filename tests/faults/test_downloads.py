"""Downloads that nobody reads to their end hold nothing open."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.rig.product import Product
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.fault
READERS = 50


def working(product: Product) -> int:
    """Return how many connections PostgreSQL serves that are not idle, but for the asking one."""
    ((number,),) = product.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state <> 'idle' AND pid <> pg_backend_pid()"
    )
    return int(number)


def open_files(pid: int, folder: Path) -> int:
    """Return how many files of a folder a process has open."""
    found = 0
    for link in Path("/proc", str(pid), "fd").iterdir():
        try:
            found += link.readlink().is_relative_to(folder)
        except OSError:
            continue
    return found


async def test_readers_that_leave_close_what_they_opened(
    product: Product, keys: dict[str, str]
) -> None:
    """
    Fifty clients leave a large download at its beginning: within five seconds the portal has
    closed the file, and no connection to PostgreSQL is still in use.
    """
    line = {
        "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "witness", "messages": [{"role": "user", "content": "x" * 20_000}]},
    }  # fmt: skip
    content = b"".join(
        json.dumps({"custom_id": f"l{number}", **line}).encode() + b"\n" for number in range(800)
    )
    headers = {"Authorization": f"Bearer {keys['fritz']}"}
    limits = httpx.Limits(max_connections=None)
    client = httpx.AsyncClient(
        base_url=product.url, headers=headers, timeout=60, verify=False, limits=limits
    )
    async with client:
        stored = await client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}
        )
        path = f"/v1/files/{stored.json()['id']}/content"
        whole = await client.get(path)
        assert whole.content == content
        portal = product.pid("portal")

        async def begin() -> None:
            async with client.stream("GET", path) as answer:
                assert answer.status_code == 200
                async for _ in answer.aiter_raw(1024):
                    break

        await asyncio.gather(*(begin() for _ in range(READERS)))
        wait_until(lambda: open_files(portal, product.data_dir / "files") == 0, 5, "files closed")
        wait_until(lambda: working(product) == 0, 5, "no connection is in use")
        assert (await client.get(path)).content == content
