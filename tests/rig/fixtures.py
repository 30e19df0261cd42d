"""One running product for the whole session, and fresh ones for tests that break theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rig.engine_script import Script
from tests.rig.llama import Llama
from tests.rig.product import Product
from tests.rig.witness import Witness

# Ageing is tested by moving ledger time, never by waiting or by moving the host's clock.
TESTING = {"TEST_CLOCK": "1", "ENGINE_SLOTS": "8"}  # vLLM does not tell its slots


@pytest.fixture(scope="session")
def running_witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Run the witness engine the shared product uses."""
    engine = Witness(tmp_path_factory.mktemp("witness"), Script(slots=8)).start()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def product(
    running_witness: Witness, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    """Run the product for every test that leaves it as it found it."""
    folder = tmp_path_factory.mktemp("product")
    # Every program says all it has to say: what is looked for in the logs must have its chance.
    found = Product(folder, running_witness.url, TESTING | {"LOG_LEVEL": "DEBUG"})
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture(scope="session")
def doomed(running_witness: Witness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Run the product whose parts the fault tests kill; each test waits until it is well again.

    It has four gateways, which share one ledger in Redis.
    """
    settings = TESTING | {"GATEWAY_PROCESSES": "4"}
    found = Product(tmp_path_factory.mktemp("doomed"), running_witness.url, settings)
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture
def witness(running_witness: Witness) -> Iterator[Witness]:
    """Return the shared witness engine; it behaves well again after the test."""
    yield running_witness
    running_witness.reset()


@pytest.fixture(scope="session")
def llama(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """Run a real llama.cpp server and register it with the shared product."""
    engine = Llama(tmp_path_factory.mktemp("llama")).start()
    product.manage("addengine", engine.url, "--json")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Product]]:
    """Return a maker of further products, for tests that end with the whole of one."""
    made: list[Product] = []

    def make(engine_url: str, *, start: bool = True, **settings: str) -> Product:
        one = Product(tmp_path_factory.mktemp("own"), engine_url, TESTING | settings)
        made.append(one)
        return one.start() if start else one

    yield make
    for one in made:
        one.stop()


__all__ = ["doomed", "fresh", "llama", "product", "running_witness", "witness"]
