"""What the fault tests share: keys of the shared product, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.rig.chat import Caller
from tests.rig.crowd import capped
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness


@pytest.fixture(scope="session")
def keys(product: Product) -> dict[str, str]:
    """Return keys of several people: two who chat, one with batch work, one with a cap of one.

    No bound of a queue is in their way.
    """
    return capped(
        product,
        {"dora": ("interactive", 0), "emil": ("interactive", 0), "fritz": ("batch", 0),
         "single": ("interactive", 1)},
    )  # fmt: skip


@pytest.fixture
async def client(product: Product) -> AsyncIterator[Caller]:
    """Return a client of the shared product."""
    async with Caller(product.url) as found:
        yield found


@pytest.fixture
def settled(product: Product, witness: Witness) -> Callable[[], None]:
    """Return a check that nothing is held or queued any more, at the gateway and at the engine."""

    def nothing_held() -> bool:
        live = product.live()
        return not live["running"] and not live["queued"] and witness.idle()

    return lambda: wait_until(nothing_held, 2.5, "all slots are free and nothing waits")
