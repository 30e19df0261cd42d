"""A conversation comes home to the replica that still holds its beginning."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.chat import Call, Caller
from tests.rig.llama import MODEL, Llama
from tests.rig.product import Product
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.journey
TALKS, TURNS = 6, 5
WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty"]


@pytest.fixture(scope="module")
def twins(doomed: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Llama]]:
    """Run two real llama.cpp replicas of one model, behind two gateways."""
    folder = tmp_path_factory.mktemp("twins")
    engines = [Llama(folder).start() for _ in range(2)]
    for engine in engines:
        doomed.manage("addengine", engine.url, "--json")
    wait_until(lambda: states(doomed) == ["up", "up"], 15, "both replicas are up")
    yield engines
    for engine in engines:
        engine.stop()


def states(product: Product) -> list[str]:
    """Return the states of the twins."""
    return [str(e["state"]) for e in product.live()["engines"] if e["pool"] == MODEL]


class Talk:
    """One conversation; every turn carries all that was said before."""

    def __init__(self, product: Product, key: str, name: str) -> None:
        self.name = name
        self.marks: list[str] = []
        self._product = product
        self._key = key
        self._dice = random.Random(name)
        self._said: list[dict[str, Any]] = []

    async def turn(self) -> Call:
        """Say something of sixty words over a connection of its own, and keep the answer."""
        words = " ".join(self._dice.choice(WORDS) for _ in range(60))
        mark = f"{self.name}/{len(self.marks)}"
        self._said.append({"role": "user", "content": f"{self.name} {words} [mark:{mark}]"})
        body = {"model": MODEL, "messages": self._said, "max_tokens": 8, "stream": True}
        async with Caller(self._product.url) as client:
            call = await client.ask(self._key, {**body, "temperature": 0}, headers={
                "X-Request-Id": mark
            })  # fmt: skip
        assert call.whole, (call.status, call.body[:300])
        self.marks.append(mark)
        self._said.append({"role": "assistant", "content": call.text})
        return call


def homes(product: Product, talks: list[Talk]) -> dict[str, set[str]]:
    """Return the replicas each conversation has been on."""
    found: dict[str, set[str]] = defaultdict(set)
    for talk in talks:
        for mark in talk.marks:
            found[talk.name].add(product.usage(mark)[0]["replica_id"])
    return found


async def test_conversations_stay_with_their_cache(doomed: Product, twins: list[Llama]) -> None:
    """
    Six conversations, interleaved over two gateways and two replicas: each stays on one replica,
    and most of what it repeats is read from the cache.
    """
    names = {f"talker{number}": "interactive" for number in range(TALKS)}
    keys = await asyncio.to_thread(doomed.keys, **names)
    talks = [Talk(doomed, key, name) for name, key in keys.items()]
    for _ in range(TURNS):
        await asyncio.gather(*(talk.turn() for talk in talks))
    rows = [doomed.usage(mark)[0] for talk in talks for mark in talk.marks]
    assert {name: len(where) for name, where in homes(doomed, talks).items()} == dict.fromkeys(
        names, 1
    )
    assert len({row["replica_id"] for row in rows}) == 2, "both replicas have work"
    cached = sum(row["cached_tokens"] for row in rows)
    prompt = sum(row["prompt_tokens"] for row in rows)
    assert cached / prompt >= 0.6, f"{cached} of {prompt} prompt tokens came from the cache"


async def test_a_dead_replica_moves_its_conversation_once(
    doomed: Product, twins: list[Llama]
) -> None:
    """A conversation moves when its replica dies, and stays where it is when that one is back."""
    keys = await asyncio.to_thread(doomed.keys, mover="interactive")
    talk = Talk(doomed, keys["mover"], "mover")
    await talk.turn()
    await talk.turn()
    (home,) = homes(doomed, [talk])["mover"]
    urls = dict(doomed.sql("SELECT public_id, url FROM quotas_replica"))
    dying = next(engine for engine in twins if engine.url == urls[home])
    dying.kill()
    await talk.turn()
    (moved_to,) = homes(doomed, [talk])["mover"] - {home}
    dying.start()
    await asyncio.to_thread(
        wait_until, lambda: states(doomed) == ["up", "up"], 15, "the replica is back"
    )
    await talk.turn()
    await talk.turn()
    where = [doomed.usage(mark)[0]["replica_id"] for mark in talk.marks]
    assert where == [home, home, moved_to, moved_to, moved_to]
