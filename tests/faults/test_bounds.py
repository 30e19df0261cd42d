"""The machine runs out: of disk, of file numbers. What cannot be done is refused, nothing dies."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product
from tests.rig.seeding import seed
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault


async def test_without_file_numbers_newcomers_wait_and_nobody_is_lost(
    product: Product, witness: Witness, keys: dict[str, str]
) -> None:
    """
    Five hundred connections meet a gateway that may open a hundred more files: who is connected
    is served, the gateway lives, and once they leave everybody is.
    """
    gateway = product.pid("gateway")
    soft, hard = resource.prlimit(gateway, resource.RLIMIT_NOFILE)
    opened = len(os.listdir(f"/proc/{gateway}/fd"))  # noqa: PTH208  (only their number matters)
    async with Caller(product.url) as client:
        assert (await client.ask(keys["dora"], chat("witness", "files/before"))).whole
        resource.prlimit(gateway, resource.RLIMIT_NOFILE, (opened + 100, hard))
        try:
            with ExitStack() as crowd:
                for _ in range(500):
                    link = crowd.enter_context(socket.socket())
                    link.setblocking(False)
                    with suppress(BlockingIOError):
                        link.connect(("127.0.0.1", product.port))
                await asyncio.sleep(1)
                within = [
                    await client.ask(keys["dora"], chat("witness", f"files/{one}"))
                    for one in range(5)
                ]
        finally:
            resource.prlimit(gateway, resource.RLIMIT_NOFILE, (soft, hard))
    assert checkers.all_ended(within, may_break=False) == []

    async def is_well() -> bool:
        async with Caller(product.url, timeout_s=5) as client:
            return (await client.ask(keys["dora"], chat("witness", "files/after"))).whole

    give_up = time.monotonic() + 20
    while not await is_well():
        assert time.monotonic() < give_up, "newcomers are not served again"
    assert product.pid("gateway") == gateway
    print(f"while short of files: {Counter(call.status for call in within)}")


@pytest.mark.long
async def test_heads_that_never_end_are_cut_and_hold_up_nobody(
    product: Product, client: Caller, keys: dict[str, str]
) -> None:
    """
    Five hundred connections send a byte of their head now and then: chats go on beside them, and
    each is cut within half a minute.
    """
    links = []
    for _ in range(500):
        reader, writer = await asyncio.open_connection("127.0.0.1", product.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        links.append((reader, writer))
    since_s = time.monotonic()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
        """Send on until the gateway ends the connection; return when it did."""
        with suppress(ConnectionError):
            while time.monotonic() < since_s + 40:
                writer.write(b"x")
                with suppress(TimeoutError):
                    if not await asyncio.wait_for(reader.read(1000), 1):
                        break
        writer.close()
        return time.monotonic() - since_s

    dripping = [asyncio.create_task(drip(*link)) for link in links]
    calls = []
    while not all(task.done() for task in dripping):
        mark = f"beside/{len(calls)}"
        calls.append(await client.ask(keys["dora"], chat("witness", mark)))
        await asyncio.sleep(0.1)
    cut_s = [task.result() for task in dripping]
    slowest_s = max(call.ended_s - call.invoked_s for call in calls)
    print(f"cut after {min(cut_s):.0f} to {max(cut_s):.0f} s; {len(calls)} chats beside them,"
          f" the slowest {slowest_s:.2f} s")  # fmt: skip
    assert max(cut_s) < 30
    assert [(call.status, call.code) for call in calls if not call.whole] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 320 MB."""
    folder = tmp_path / "product" / "data"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=320m,mode=755", "fairway-test", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the space there is; return what took it."""
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65_536)
    return filler


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_full_disk_takes_no_half_file_and_recovers(
    fresh: Callable[..., Product], running_witness: Witness, small_disk: Path
) -> None:
    """
    The disk of files, PostgreSQL, Redis and logs is full: uploads end in a clear error, chats in
    an answer or 503, a stored file stays readable where the portal is; with space again all is
    well within 30 s, no half file is there, and each whole chat has its row.
    """
    witness = running_witness
    product = fresh(witness.url, start=False)
    product.folder = small_disk.parent  # what it prints is kept elsewhere
    seed(product.data_dir)
    product.start()
    keys = await asyncio.to_thread(product.keys, dora="interactive", fritz="batch")
    line = b'{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":{"model":' \
        b'"witness","messages":[{"role":"user","content":"' + b"x" * 9_000 + b'"}]}}\n'  # fmt: skip
    content = b"".join(line % number for number in range(500))
    headers = {"Authorization": f"Bearer {keys['fritz']}"}
    api = httpx.AsyncClient(base_url=product.url, headers=headers, timeout=60, verify=False)
    form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
    calls: list[Call] = []
    async with api, Caller(product.url) as client:
        kept = (await api.post("/v1/files", **form)).json()["id"]
        filler = fill(small_disk)
        since_s = time.monotonic()
        uploads = [await api.post("/v1/files", **form) for _ in range(3)]
        reads = await api.get(f"/v1/files/{kept}/content")
        for number in range(20):
            calls.append(await client.ask(keys["dora"], chat("witness", f"dora/full-{number}")))
            await asyncio.sleep(0.2)
        print(f"{time.monotonic() - since_s:.0f} s full: uploads"
              f" {[one.status_code for one in uploads]}, read {reads.status_code},"
              f" chats {Counter((c.status, c.code) for c in calls)}")  # fmt: skip
        assert {one.status_code for one in uploads} <= {500, 502, 503, 507}
        assert all("error" in one.json() for one in uploads)
        assert reads.status_code in (200, 503)
        assert reads.status_code != 200 or reads.content == content
        assert checkers.all_ended(calls, may_break=True) == [], product.output[-6000:]
        filler.unlink()
        freed_s, whole = time.monotonic(), 1
        while True:
            with suppress(httpx.HTTPError):
                again = await api.post("/v1/files", **form)
                whole += again.status_code == 200
                last = await client.ask(keys["dora"], chat("witness", "dora/again"))
                if again.status_code == 200 and last.whole:
                    break
            assert time.monotonic() < freed_s + 40, (again.text, last.body, product.output[-2000:])
            await asyncio.sleep(0.3)
        print(f"well {time.monotonic() - freed_s:.1f} s after there was space again")
        assert (await api.get(f"/v1/files/{kept}/content")).content == content
        listed = (await api.get("/v1/files")).json()["data"]
    assert {one["bytes"] for one in listed} == {len(content)}
    assert len(listed) == whole
    stored = [path for path in (product.data_dir / "files").rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in stored] == [len(content)] * whole
    for call in calls:
        if call.whole:
            wait_until(lambda mark=call.mark: len(product.usage(mark)) == 1, 20, "it has its row")
