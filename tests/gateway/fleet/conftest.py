"""Real llama.cpp servers and witness engines for the fleet's tests, without the rest of us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.rig.engine_script import Script
from tests.rig.llama import Llama
from tests.rig.witness import Witness


class LlamaServer(Llama):
    """A real llama.cpp server that can be asked something."""

    def complete(self, text: str, tokens: int = 4) -> dict[str, Any]:
        """Let it answer one prompt."""
        body = {"prompt": text, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=30)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """Return a real llama.cpp server with four slots of 2,048 tokens."""
    server = LlamaServer(tmp_path_factory.mktemp("llama"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def witness_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Return one witness engine for the whole run."""
    engine = Witness(tmp_path_factory.mktemp("witness"), Script(kind="vllm")).start()
    yield engine
    engine.stop()


@pytest.fixture
def witness(witness_process: Witness) -> Witness:
    """Return the witness engine, behaving as at its start."""
    if witness_process.process is None or witness_process.process.poll() is not None:
        witness_process.start()
    witness_process.reset()
    return witness_process
