"""kill -9 of anything: the rest goes on, the killed part returns, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from tests.rig.chat import Caller, chat
from tests.rig.product import Product, alive, descendants
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
CHILDREN = ("gateway", "portal", "worker", "beat", "writer", "postgres", "valkey")
BACK_WITHIN_S = 15  # on a machine that does other things as well


@pytest.fixture(scope="module")
def key(doomed: Product) -> str:
    """Return a key of it."""
    return doomed.key("alice")


def answers(product: Product, key: str) -> bool:
    """Answer whether a chat comes back whole."""

    async def ask() -> bool:
        async with Caller(product.url, timeout_s=5) as client:
            return (await client.ask(key, chat("witness", "kill/after"))).whole

    return asyncio.run(ask())


@pytest.mark.parametrize("part", CHILDREN)
def test_a_killed_child_is_back_and_the_others_never_restarted(
    doomed: Product, key: str, part: str
) -> None:
    """
    Each child killed in turn is back within 15 s and the product serves; all others kept their pid.
    """
    before = doomed.parts()
    killed = doomed.kill(part)

    def is_back() -> bool:
        now = doomed.parts()[part]
        return killed not in now and len(now) == len(before[part])

    wait_until(is_back, BACK_WITHIN_S, f"{part} is back")
    wait_until(lambda: doomed.get("/readyz", timeout=2) == 200, BACK_WITHIN_S, "ready again")
    wait_until(lambda: answers(doomed, key), BACK_WITHIN_S, "a chat is answered", every_s=0.3)
    wait_until(
        lambda: doomed.get("/accounts/login/", timeout=5) == 200, BACK_WITHIN_S, "pages are served"
    )
    after = doomed.parts()
    # Celery's worker may end when its broker dies; it is started again like everything else.
    spared = {"worker"} if part == "valkey" else set()
    ended = {name: set(pids) - set(after[name]) - {killed} for name, pids in before.items()}
    assert {name: gone for name, gone in ended.items() if gone and name not in spared} == {}


@pytest.mark.long  # house/test_supervisor.py holds it in every run
def test_a_killed_supervisor_takes_everything_with_it(
    fresh: Callable[..., Product], running_witness: Witness
) -> None:
    """
    After kill -9 of `manage.py up` nothing of it runs within 5 s, and the next start works.
    """
    product = fresh(running_witness.url)
    key = product.key("alice")
    assert product.process is not None
    family = descendants(product.process.pid)
    assert len(family) > len(CHILDREN)

    os.kill(product.process.pid, signal.SIGKILL)
    product.process.wait()
    wait_until(lambda: not alive(family), 5, "all have ended")
    product.start()
    assert answers(product, key)


async def test_a_gateway_that_is_asked_to_end_finishes_its_streams(
    doomed: Product, key: str, witness: Witness
) -> None:
    """
    SIGTERM to one of several gateways, as at a deployment: running streams end whole, newcomers are
    served by the others, at their second try at the latest; the first is started again.
    """
    witness.tell(decode_tps=10, tokens=20)
    owners = {f"deploy{number}": "interactive" for number in range(4)}
    secrets = await asyncio.to_thread(doomed.keys, **owners)

    async def ask(owner: str, number: int) -> bool:
        async with Caller(doomed.url) as client:
            call = await client.ask(secrets[owner], chat("witness", f"{owner}/{number}"))
            return call.whole

    running = [asyncio.create_task(ask(owner, one)) for owner in owners for one in range(2)]
    await asyncio.sleep(0.7)
    before = doomed.parts()["gateway"]
    ended = doomed.kill("gateway", signal.SIGTERM)
    # Who connects in the very moment is sent away or cut, and comes again as every client does.
    newcomers = [await ask(owner, 8) or await ask(owner, 9) for owner in owners]
    assert all(await asyncio.gather(*running))
    assert all(newcomers)
    await asyncio.to_thread(
        wait_until,
        lambda: ended not in (now := doomed.parts()["gateway"]) and len(now) == len(before),
        BACK_WITHIN_S,
        "the gateway was started again",
    )
