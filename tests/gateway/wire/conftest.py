"""One gateway and one witness engine for the module; a fresh pair where a test breaks them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.gateway.wire.stage import Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.witness import Witness

# Stages that live as long as the session or a module have a number of their own.
DATABASES = itertools.cycle(range(1, 12))
SHARED, IMPATIENT = 12, 13


@dataclass
class Stage:
    """A gateway, its books, and the engine behind it."""

    gateway: GatewayProcess
    books: Books
    witness: Witness

    def client(self, secret: str) -> httpx.Client:
        """Return a client that shows this key."""
        return httpx.Client(
            base_url=self.gateway.url, headers=bearer(secret), timeout=30, trust_env=False
        )

    def ask(self, secret: str, body: dict[str, Any] | None = None, **rest: Any) -> httpx.Response:
        """Send one chat request."""
        with self.client(secret) as client:
            return client.post("/v1/chat/completions", json=body or chat(**rest))


@pytest.fixture(scope="session")
def shared_stage(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Run one gateway in front of a witness engine for all tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("wire")
    with staged(redis_server, folder, Script(slots=8), database=SHARED) as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Iterator[Stage]:
    """Return the shared stage; afterwards nothing may run, wait or be held."""
    shared_stage.books.publish()  # other tests may have emptied the store
    yield shared_stage
    shared_stage.witness.reset()
    shared_stage.gateway.wait_settled()
    # A good answer, so that one test's broken engine is not held against the next one's.
    assert shared_stage.ask(shared_stage.books.key("tidy")).status_code == 200


@contextlib.contextmanager
def staged(
    redis_server: str,
    folder: Path,
    script: Script,
    *,
    kind: str = "vllm",
    database: int = 0,
    **settings: str,
) -> Iterator[Stage]:
    """Run a stage with settings of its own, in an empty database of its own.

    Database 0 belongs to the tests of other rooms: a gateway writes there whenever it likes.
    """
    url = redis_server.replace("db=0", f"db={database or next(DATABASES)}")
    assert url != redis_server
    store = redis.Redis.from_url(url)
    store.flushdb()
    witness = Witness(folder, script).start()
    books = Books(store)
    books.engine(witness.url, kind=kind, slots=script.slots)
    gateway = GatewayProcess(folder, url, settings).start()
    gateway.wait_up()
    yield Stage(gateway, books, witness)
    gateway.stop()
    witness.stop()


@pytest.fixture
def make_gateway(
    redis_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Stage]]:
    """Return a maker of stages with settings of their own."""
    with contextlib.ExitStack() as stack:

        def make(script: Script | None = None, **settings: Any) -> Stage:
            folder = tmp_path_factory.mktemp("own")
            script = script or Script(slots=8)
            return stack.enter_context(staged(redis_server, folder, script, **settings))

        yield make
