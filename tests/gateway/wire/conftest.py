"""One gateway and one witness engine for the module; a fresh pair where a test breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import redis

from tests.gateway.wire.stage import Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.witness import Witness


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


@pytest.fixture(scope="module")
def module_stage(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Run a gateway in front of a witness engine."""
    folder = tmp_path_factory.mktemp("wire")
    witness = Witness(folder, Script(slots=8)).start()
    store = redis.Redis.from_url(redis_server)
    store.flushall()
    books = Books(store)
    books.engine(witness.url, slots=8)
    gateway = GatewayProcess(folder, redis_server).start()
    gateway.wait_up()
    yield Stage(gateway, books, witness)
    gateway.stop()
    witness.stop()


@pytest.fixture
def stage(module_stage: Stage) -> Iterator[Stage]:
    """Return the module's stage; afterwards nothing may run, wait or be held."""
    yield module_stage
    module_stage.witness.reset()
    module_stage.gateway.wait_settled()
    # A good answer, so that one test's broken engine is not held against the next one's.
    assert module_stage.ask(module_stage.books.key("tidy")).status_code == 200


@pytest.fixture
def make_gateway(
    redis_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Stage]]:
    """Return a maker of stages with settings of their own, on an empty store of their own.

    The module's gateway lives on in database 0 and writes there whenever it likes.
    """
    made: list[Stage] = []
    redis_url = redis_server.replace("db=0", "db=1")
    assert redis_url != redis_server
    redis.Redis.from_url(redis_url).flushdb()

    def make(script: Script | None = None, *, kind: str = "vllm", **settings: str) -> Stage:
        folder = tmp_path_factory.mktemp("own")
        script = script or Script(slots=8)
        witness = Witness(folder, script).start()
        books = Books(redis.Redis.from_url(redis_url))
        books.engine(witness.url, kind=kind, slots=script.slots)
        gateway = GatewayProcess(folder, redis_url, settings).start()
        gateway.wait_up()
        made.append(Stage(gateway, books, witness))
        return made[-1]

    yield make
    for stage in made:
        stage.gateway.stop()
        stage.witness.stop()
