"""How long Prometheus and the status page hold up a gateway that knows and serves many keys.

python -m tests.bench scrape
python -m tests.bench.scrape REDIS_URL [KEYS] [QUEUED]

Every key is used once, so that whatever a key leaves behind in the process is there. Then /metrics
is read 50 times; then as many requests as wished wait in the queue, and /internal/live and /metrics
are read again beside them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
import redis

from quotas.snapshots.credentials import Credential, sign
from tests.gateway.wire.stage import SECRET_KEY, Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.witness import Witness

READS = 50
AT_ONCE = 32


class QuietBooks(Books):
    """Books that are published when told, not with every key."""

    is_quiet = False

    def publish(self) -> None:
        """Write everything, unless more is coming."""
        if not self.is_quiet:
            super().publish()


async def use_all(url: str, secrets: list[str]) -> float:
    """Send one request with each key; returns requests per second."""
    waiting = iter(secrets)
    began_s = time.perf_counter()

    async def user(http: httpx.AsyncClient) -> None:
        for secret in waiting:
            answer = await http.post("/v1/chat/completions", json=chat(), headers=bearer(secret))
            assert answer.status_code == 200, answer.text

    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        await asyncio.gather(*(user(http) for _ in range(AT_ONCE)))
    return len(secrets) / (time.perf_counter() - began_s)


def reads(url: str, path: str, count: int) -> tuple[str, int]:
    """Return how long reading a page takes, in words, and its size."""
    took_ms: list[float] = []
    size = 0
    headers = {
        "authorization": f"Bearer {sign(SECRET_KEY, Credential('live', '', time.time() + 600))}"
    }
    with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=headers) as http:
        for _ in range(count):
            began_s = time.perf_counter()
            answer = http.get(path)
            took_ms.append(1000 * (time.perf_counter() - began_s))
            assert answer.status_code == 200, answer.text[:200]
            size = len(answer.content)
            time.sleep(0.02)
    ordered = sorted(took_ms)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    return f"median {statistics.median(took_ms):.1f} ms, p95 {p95:.1f} ms", size


def cpu_s(pid: int) -> float:
    """Return the processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def fill(url: str, secrets: list[str], count: int) -> list[asyncio.Task[None]]:
    """Let so many requests wait; they are left behind when the process ends."""
    body = httpx.Request("POST", url, json=chat("[mark:slow/1]")).content
    host, port = url.removeprefix("http://").split(":")

    async def wait(secret: str) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await reader.read(1)

    tasks = []
    for n in range(count):
        tasks.append(asyncio.create_task(wait(secrets[n % len(secrets)])))
        if n % 100 == 99:
            await asyncio.sleep(0.05)
    await asyncio.sleep(3)
    return tasks


async def main(url: str, keys: int = 10_000, queued: int = 2_000) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        witness = Witness(Path(folder), Script(slots=8, rules={"slow": {"first_delay_s": 600}}))
        witness.start()
        books = QuietBooks(redis.Redis.from_url(url))
        books.engine(witness.url, slots=8)
        books.is_quiet = True
        secrets = [
            books.key(f"p{n % 500}", in_flight=4, queued=10_000,
                      person={"in_flight": 100, "queued": 10_000})
            for n in range(keys)
        ]  # fmt: skip
        books.is_quiet = False
        books.publish()
        gateway = GatewayProcess(Path(folder), url, {"LEDGER": "redis"}).start()
        gateway.wait_up()
        assert gateway.process is not None
        try:
            rate = await use_all(gateway.url, secrets)
            print(f"{keys} keys known and used ({rate:.0f} requests/s)")
            await asyncio.sleep(2)
            words, size = await asyncio.to_thread(reads, gateway.url, "/metrics", READS)
            print(f"/metrics        {words}, {size} bytes")
            tasks = await fill(gateway.url, secrets, queued)
            before = cpu_s(gateway.process.pid)
            for path in ("/internal/live", "/metrics"):
                words, size = await asyncio.to_thread(reads, gateway.url, path, 10)
                print(f"{path:15} {words}, {size} bytes, with {queued} queued")
            await asyncio.sleep(10)
            used = cpu_s(gateway.process.pid) - before
            print(f"processor time with {queued} queued: {used:.1f} s in the last ten and more")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            gateway.process.kill()
            witness.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
