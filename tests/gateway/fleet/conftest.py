"""Real llama.cpp servers and witness engines for the fleet's tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from portal.processes import die_with_parent
from tests.rig import tiny_gguf
from tests.rig.engine_script import Script
from tests.rig.network import free_port
from tests.rig.stores import ROOT
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness


@dataclass
class LlamaServer:
    """A real llama.cpp server with the tiny model, in a process of its own."""

    slots: int = 4
    context: int = 8192
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its base address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> LlamaServer:
        """Start it, or start it again on the same port, and wait until it is well."""
        options = ["--model", tiny_gguf.path(), "--alias", "tiny", "--port", self.port]
        options += ["--slots", self.slots, "--ctx", self.context, "--cache-ram", 0]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "portal.demo_engine", *map(str, options)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        wait_until(self._well, 30, "llama.cpp is up")
        return self

    def _well(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def complete(self, text: str, tokens: int = 4) -> dict[str, Any]:
        """Let it answer one prompt."""
        body = {"prompt": text, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture(scope="session")
def llama() -> Iterator[LlamaServer]:
    """Return a real llama.cpp server with four slots of 2,048 tokens."""
    server = LlamaServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def witness_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Return one witness engine for the whole run."""
    engine = Witness(Path(tmp_path_factory.mktemp("witness")), Script(kind="vllm")).start()
    yield engine
    engine.stop()


@pytest.fixture
def witness(witness_process: Witness) -> Witness:
    """Return the witness engine, behaving as at its start."""
    if witness_process.process is None or witness_process.process.poll() is not None:
        witness_process.start()
    witness_process.reset()
    return witness_process
