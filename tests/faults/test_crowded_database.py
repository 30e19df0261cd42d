"""A PostgreSQL that has hardly a connection to give."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import psycopg
import pytest

from portal import stores
from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.crowd import capped
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_database_without_room_loses_no_row_and_refuses_nobody(
    fresh: Callable[..., Product], running_witness: Witness, witness: Witness
) -> None:
    """
    With twenty connections left in PostgreSQL three hundred streams at a time go on for five
    minutes: nobody is refused, no program runs out of connections, each request has its row.
    """
    product = fresh(running_witness.url, ENGINE_SLOTS="400")
    witness.tell(slots=400, decode_tps=4, tokens=12)
    people = {f"poor{number}": ("interactive", 100) for number in range(3)}
    secrets = await asyncio.to_thread(capped, product, people)
    calls: list[Call] = []
    url = stores.postgres_url(product.data_dir)
    with contextlib.ExitStack() as stack:
        ((used,),) = product.sql("SELECT count(*) FROM pg_stat_activity")
        for _ in range(100 - int(used) - 20):
            stack.enter_context(psycopg.connect(url))
        end_s = time.monotonic() + 300

        async def use(owner: str, key: str) -> None:
            async with Caller(product.url, timeout_s=120) as client:
                while time.monotonic() < end_s:
                    mark = f"{owner}/{time.monotonic_ns()}"
                    calls.append(await client.ask(key, chat("witness", mark)))

        await asyncio.gather(*(use(o, k) for o, k in secrets.items() for _ in range(100)))
    assert [(c.status, c.code, c.broke) for c in calls if not c.whole] == []
    assert checkers.nobody_elses(calls) == []
    wait_until(
        lambda: product.sql("SELECT count(*) FROM usage_event")[0][0] == len(calls),
        60, "each request has its row",
    )  # fmt: skip
    assert "too many" not in product.output
    print(f"{len(calls)} streams")
