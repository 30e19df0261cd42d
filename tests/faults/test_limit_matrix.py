"""Every limit there is, at every level, for both classes: set in a running product, and felt."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.faults.limit_matrix import HELD, HELD_S
from tests.rig.product import Product
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(400)]
RUN = "from tests.faults.limit_matrix import main; main({url!r})"


async def test_each_limit_at_each_level_is_felt_within_five_seconds(
    product: Product, witness: Witness
) -> None:
    """
    Set by page, REST API and shell in turn each one refuses what passed before, by its own name,
    within five seconds, and no longer once it is cleared.
    """
    witness.tell(rules={HELD[6:-1]: {"first_delay_s": HELD_S}})
    text = await asyncio.to_thread(
        product.manage, "shell", "--no-imports", "-c", RUN.format(url=product.url), timeout_s=390
    )
    told = json.loads(text.splitlines()[-1])
    assert told["wrong"] == {}
    assert told["cases"] > 70
    print(f"{told['cases']} limits set, felt and cleared")
