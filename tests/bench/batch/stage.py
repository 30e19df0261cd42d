"""The whole product on a simulated engine, with a scale and a clock beside it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from portal.processes import die_with_parent
from tests.rig.network import free_port
from tests.rig.product import Product, descendants
from tests.rig.seeding import ROOT

MODEL = "bench"
ENDED = ("completed", "failed", "expired", "cancelled")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
#: The parts whose CPU a line costs. The portal is not among them: nobody asks it for a line.
COUNTED = ("worker", "gateway", "postgres", "valkey", "writer")


def line(number: int, tokens: int | None, text: str, system: str = "") -> bytes:
    """Return one line of a batch file."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    body = {"model": MODEL, "messages": messages} | ({"max_tokens": tokens} if tokens else {})
    row = {"custom_id": f"l{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(row).encode() + b"\n"


def lengths(count: int, median: float, sigma: float, seed: int) -> list[int]:
    """Return log-normal answer lengths."""
    dice = random.Random(seed)
    return [max(1, round(median * dice.lognormvariate(0, sigma))) for _ in range(count)]


@dataclass
class Engine:
    """The simulated engine's process."""

    process: subprocess.Popen[bytes]
    url: str

    @classmethod
    def start(cls, **times: Any) -> Engine:
        """Start it with these times."""
        port = free_port()
        argv = [sys.executable, "-m", "tests.bench.batch.engine", str(port), json.dumps(times)]
        engine = cls(
            subprocess.Popen(argv, cwd=ROOT, preexec_fn=die_with_parent), f"http://127.0.0.1:{port}"
        )
        for _ in range(200):
            with contextlib.suppress(httpx.HTTPError):
                engine.stats()
                return engine
            time.sleep(0.05)
        raise RuntimeError("the simulated engine did not start")

    def stats(self) -> dict[str, Any]:
        """Return its books."""
        found: dict[str, Any] = httpx.get(f"{self.url}/stats", timeout=5).json()
        return found

    def tell(self, **times: Any) -> None:
        """Change its times."""
        httpx.post(f"{self.url}/tell", json=times, timeout=5).raise_for_status()


class Batches:
    """The API of one key."""

    def __init__(self, url: str, secret: str) -> None:
        self.client = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {secret}"}, timeout=300
        )

    def upload(self, lines: Iterable[bytes]) -> dict[str, Any]:
        """Send a file; it is spooled to disk, as a user's file is."""
        with tempfile.TemporaryFile() as file:
            for one in lines:
                file.write(one)
            file.seek(0)
            answer = self.client.post(
                "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", file)}
            )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def create(self, file_id: str, **more: Any) -> dict[str, Any]:
        """Submit."""
        body = {
            "input_file_id": file_id, "endpoint": "/v1/chat/completions",
            "completion_window": "24h", **more,
        }  # fmt: skip
        answer = self.client.post("/v1/batches", json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def submit(self, lines: Iterable[bytes]) -> str:
        """Send a file and submit it."""
        return str(self.create(self.upload(lines)["id"])["id"])

    def get(self, batch_id: str) -> dict[str, Any]:
        """Return the Batch object."""
        found: dict[str, Any] = self.client.get(f"/v1/batches/{batch_id}").json()
        return found

    def done(self, batch_id: str) -> int:
        """Return how many lines have ended."""
        counts = self.get(batch_id)["request_counts"]
        return int(counts["completed"] + counts["failed"])

    def wait(self, batch_id: str, within_s: float, every_s: float = 0.25) -> dict[str, Any]:
        """Return the Batch object once it has ended."""
        give_up = time.monotonic() + within_s
        while (batch := self.get(batch_id))["status"] not in ENDED:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{batch_id}: {batch['status']} {batch['request_counts']}")
            time.sleep(every_s)
        return batch


@dataclass
class Stage:
    """A product and its engine."""

    product: Product
    engine: Engine

    def batches(self, secret: str) -> Batches:
        """Return the API as a key's holder has it."""
        return Batches(self.product.url, secret)

    def pids(self, part: str) -> list[int]:
        """Return the processes of a part, with all below them."""
        own = self.product.parts()[part]
        return own + [below.pid for pid in own for below in descendants(pid)]

    def cpu_s(self, part: str) -> float:
        """Return the CPU time a part has used, with that of its ended children."""
        ticks = 0
        for pid in self.pids(part):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(int(value) for value in fields[11:15])
        return ticks * TICK_S

    def all_cpu_s(self) -> dict[str, float]:
        """Return the CPU time of every counted part."""
        return {part: self.cpu_s(part) for part in COUNTED}

    def memory_mib(self, part: str, figure: str = "VmRSS") -> list[float]:
        """Return the memory of each process of a part; `VmHWM` is the most it ever had."""
        found = []
        for pid in self.pids(part):
            with contextlib.suppress(OSError, IndexError):
                status = Path(f"/proc/{pid}/status").read_text()
                found.append(int(status.partition(f"{figure}:")[2].split()[0]) / 1024)
        return found

    def redis_mib(self) -> float:
        """Return what Valkey holds."""
        with self.product.redis() as link:
            return float(link.info("memory")["used_memory"]) / 2**20


@contextlib.contextmanager
def stage(
    *, slots: int = 8, settings: dict[str, str] | None = None, **times: Any
) -> Iterator[Stage]:
    """Yield a product of its own on a simulated engine."""
    with tempfile.TemporaryDirectory(prefix="batch-bench-") as folder:
        engine = Engine.start(slots=slots, model=MODEL, **times)
        wanted = {
            "ENGINE_SLOTS": str(slots), "ENGINE_KIND": "vllm", "LOG_LEVEL": "WARNING",
            **(settings or {}),
        }  # fmt: skip
        product = Product(Path(folder), engine.url, wanted)
        try:
            product.start()
            yield Stage(product, engine)
        finally:
            product.stop()
            engine.process.kill()
            engine.process.wait()
