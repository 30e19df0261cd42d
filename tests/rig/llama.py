"""A real llama.cpp server with the tiny model, as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from portal.processes import die_with_parent
from tests.rig import tiny_gguf
from tests.rig.network import free_port
from tests.rig.seeding import ROOT
from tests.rig.waiting import wait_until

MODEL = "tiny"
COUNTER = re.compile(r"^llamacpp:(\w+) ([0-9.e+]+)$", re.MULTILINE)


@dataclass
class Llama:
    """One replica: one thread, host prompt cache off, metrics, slots and props on."""

    folder: Path
    slots: int = 4
    context: int = 8192  # shared by the slots
    embeddings: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its base address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Llama:
        """Start it, or start it again on the same port, and wait until it serves."""
        arguments = {
            "model": tiny_gguf.path(), "alias": MODEL, "port": self.port, "slots": self.slots,
            "ctx": self.context, "threads": 1, "cache-ram": 0,
        }  # fmt: skip
        options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"llama-{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "portal.demo_engine", *options]
                + ["--embeddings"] * self.embeddings,
                cwd=ROOT, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip
        wait_until(self._healthy, 60, "the llama.cpp server is healthy", every_s=0.1)
        return self

    def _healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the llama.cpp server ended while starting"
        try:
            return httpx.get(f"{self.url}/health", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def counters(self) -> dict[str, int]:
        """Return the server's own counters; `prompt_tokens_total` leaves cached ones out."""
        page = httpx.get(f"{self.url}/metrics", timeout=10).text
        return {name: int(float(value)) for name, value in COUNTER.findall(page)}

    def busy_slots(self) -> int:
        """Return how many of its slots work right now."""
        slots = httpx.get(f"{self.url}/slots", timeout=10).json()
        return sum(slot["is_processing"] for slot in slots)

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send it a signal; SIGSTOP and SIGCONT leave it alive."""
        assert self.process is not None
        self.process.send_signal(how)
        if how in (signal.SIGKILL, signal.SIGTERM):
            self.process.wait()

    def stop(self) -> None:
        """End it."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()
