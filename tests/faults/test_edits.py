"""An edit of the books is in force on every gateway within five seconds, hints or no hints."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import redis

from tests.rig.chat import Call, Caller, chat
from tests.rig.crowd import caller_of
from tests.rig.product import Product
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault
BOUND_S = 5.0
REST_S = 0.2  # between two streams of one gateway: four gateways make 20 a second
EDIT = """
import json, time
from quotas.models import ApiKey
from quotas.services import keys, limits
key = ApiKey.objects.get(owner__username="{user}")
began = time.monotonic()
{change}
print(json.dumps(began))
"""
SHORTER = """
limits.set_limit(holder=limits.Holder(key=key), service_class="interactive",
                 name="max_output_tokens", per="key", value={most})
"""


@contextmanager
def no_hints(link: redis.Redis) -> Iterator[None]:
    """Cut every subscription of a gateway as soon as it is made."""
    done = threading.Event()

    def cut() -> None:
        while not done.is_set():
            with suppress(redis.RedisError):
                for client in link.client_list(_type="pubsub"):
                    if client["psub"] == "0":  # Celery's are patterns, and another matter
                        link.client_kill_filter(_id=client["id"])
            time.sleep(0.02)

    worker = threading.Thread(target=cut)
    worker.start()
    try:
        yield
    finally:
        done.set()
        worker.join()


class Stream:
    """Steady streams of one key over the one connection of one gateway."""

    def __init__(self, client: Caller, key: str, owner: str) -> None:
        self.calls: list[Call] = []
        self._client, self._key, self._owner = client, key, owner

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            mark = f"{self._owner}/{time.monotonic_ns()}"
            body = chat("witness", mark, max_tokens=8)
            self.calls.append(await self._client.ask(self._key, body))
            await asyncio.sleep(REST_S)

    async def close(self) -> None:
        await self._client.__aexit__()

    def statuses(self, since_s: float, until_s: float = float("inf")) -> set[int]:
        """Return what was answered to calls of a time."""
        return {call.status for call in self.calls if since_s < call.invoked_s < until_s}


def edit(product: Product, user: str, change: str) -> float:
    """Change the books; returns the instant just before, by the machine's monotonic clock."""
    told = product.manage("shell", "--no-imports", "-c", EDIT.format(user=user, change=change))
    return float(told.splitlines()[-1])


@pytest.mark.long
async def test_edits_reach_four_busy_gateways_without_hints(
    doomed: Product, witness: Witness
) -> None:
    """
    Under twenty streams a second of one key, five on each of four gateways, a smaller limit, a
    larger one and the key's end are each in force within five seconds and stay, with every
    subscription cut.
    """
    key = await asyncio.to_thread(doomed.key, "edited")
    pids = sorted(doomed.parts()["gateway"])
    assert len(pids) == 4
    streams = [Stream(await caller_of(doomed, pid), key, "edited") for pid in pids]
    stop = asyncio.Event()
    witness.tell(tokens=8)
    with no_hints(doomed.redis()):
        running = [asyncio.create_task(stream.run(stop)) for stream in streams]
        await asyncio.sleep(1)
        instants = []
        for change in (SHORTER.format(most=4), SHORTER.format(most=16), "keys.revoke(key=key)"):
            instants.append(await asyncio.to_thread(edit, doomed, "edited", change))
            await asyncio.sleep(max(0.0, instants[-1] + BOUND_S - time.monotonic()) + 2)
        stop.set()
        await asyncio.gather(*running)
        for stream in streams:
            await stream.close()
    small_s, large_s, end_s = instants
    for pid, stream in zip(pids, streams, strict=True):
        assert stream.statuses(0, small_s) == {200}, pid
        assert stream.statuses(small_s + BOUND_S, large_s) == {400}, pid
        assert stream.statuses(large_s + BOUND_S, end_s) == {200}, pid
        assert stream.statuses(end_s + BOUND_S) == {401}, pid
    rate = sum(len(stream.calls) for stream in streams) / (time.monotonic() - small_s)
    print(f"{rate:.0f} streams a second over {len(pids)} gateways")
