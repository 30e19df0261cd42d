"""Four gateways before two real llama.cpp servers: a conversation comes home to its cache."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import redis

from quotas.snapshots.usage import UsageRecord
from tests.gateway.wire.stage import Books, GatewayProcess, bearer
from tests.rig.engine_script import Script
from tests.rig.llama import MODEL, Llama
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness, peak

TALKS, TURNS = 6, 6
WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty"]
SHARED = {"LEDGER": "redis", "GATEWAY_PROCESSES": "4"}


@dataclass
class House:
    """The gateways, their engines and the books."""

    gateways: list[GatewayProcess]
    books: Books
    llamas: list[Llama]
    witnesses: list[Witness]
    dice: random.Random = field(default_factory=lambda: random.Random(4))

    def url(self) -> str:
        """Return the address of any of the gateways."""
        return self.dice.choice(self.gateways).url

    def wait_engines(self, pool: str, up: int) -> None:
        """Wait until every gateway sees so many engines of a pool up."""

        def seen(gateway: GatewayProcess) -> int:
            engines = gateway.live()["engines"]
            return sum(e["pool"] == pool and e["state"] in ("up", "busy") for e in engines)

        wait_until(lambda: all(seen(g) == up for g in self.gateways), 20, f"{up} of {pool} are up")


@pytest.fixture(scope="module")
def house(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Run them all; the host's prompt cache of the engines is off."""
    folder = tmp_path_factory.mktemp("house")
    url = redis_server.replace("db=0", "db=11")
    store = redis.Redis.from_url(url)
    store.flushdb()
    books = Books(store)
    llamas = [Llama(folder, context=16_384) for _ in range(2)]
    witnesses = [Witness(folder, Script(slots=8)) for _ in range(3)]
    gateways = [GatewayProcess(folder, url, SHARED) for _ in range(4)]
    for llama in llamas:
        books.engine(llama.url, pool=MODEL, kind="llamacpp", slots=4)
    for witness in witnesses:
        books.engine(witness.url, pool="witness", slots=8)
    for part in [*llamas, *witnesses, *gateways]:
        part.start()
    for gateway in gateways:
        gateway.wait_up(5)
        ready = f"{gateway.url}/readyz"
        wait_until(lambda r=ready: httpx.get(r).status_code == 200, 20, "the ledger is open")
    yield House(gateways, books, llamas, witnesses)
    for part in [*gateways, *llamas, *witnesses]:
        part.stop()


class Talk:
    """One conversation; every turn carries all that was said before."""

    def __init__(self, house: House, name: str, words: int = 60) -> None:
        self.name, self.house, self.words = name, house, words
        caps = {"in_flight": 8, "queued": 40}
        self.secret = house.books.key(name, **caps, person=caps)
        self.said: list[dict[str, Any]] = []
        self.rows: list[UsageRecord] = []
        self._dice = random.Random(name)

    def body(self, words: int = 0) -> dict[str, Any]:
        """Say something more and return the request that carries it all."""
        text = " ".join(self._dice.choice(WORDS) for _ in range(words or self.words))
        self.said.append({"role": "user", "content": f"{self.name} {text}"})
        return {"model": MODEL, "messages": self.said, "max_tokens": 8, "temperature": 0}

    def heard(self, answer: httpx.Response) -> dict[str, Any]:
        """Keep what was answered and return its usage."""
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        self.said.append(told["choices"][0]["message"])
        usage: dict[str, Any] = told["usage"]
        return usage

    async def turn(self, words: int = 0) -> UsageRecord:
        """Have one turn through any of the gateways, over a connection of its own."""
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(
                f"{self.house.url()}/v1/chat/completions",
                json=self.body(words), headers=bearer(self.secret),
            )  # fmt: skip
        self.heard(answer)
        request_id = answer.headers["x-request-id"]
        self.rows.append(await asyncio.to_thread(self.house.books.record_of, request_id))
        return self.rows[-1]


async def in_turns(house: House) -> tuple[int, int]:
    """Let new conversations talk to the engines themselves, one after the other; as a baseline."""
    cached = prompt = asked = 0
    talks = [Talk(house, f"apart{number}") for number in range(TALKS)]
    async with httpx.AsyncClient(timeout=60) as client:
        for _ in range(TURNS):
            for talk in talks:
                engine = house.llamas[asked % 2]
                asked += 1
                url = f"{engine.url}/v1/chat/completions"
                usage = talk.heard(await client.post(url, json=talk.body()))
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                prompt += usage["prompt_tokens"]
            asked += 1  # an even number of talks would come home by chance
    return cached, prompt


async def test_conversations_stay_with_their_cache(house: House) -> None:
    """
    Six conversations, interleaved over four gateways and two replicas: 99 % of the turns are on
    the conversation's own replica, and 60 % of what they repeat is read from its cache, several
    times as much as when they take the replicas in turns.
    """
    talks = [Talk(house, f"talk{number}") for number in range(TALKS)]
    for _ in range(TURNS):
        house.dice.shuffle(talks)
        await asyncio.gather(*(talk.turn() for talk in talks))
    rows = [row for talk in talks for row in talk.rows]
    at_home = sum(row.replica_id == talk.rows[0].replica_id for talk in talks for row in talk.rows)
    share = sum(row.cached_tokens or 0 for row in rows) / sum(row.prompt_tokens for row in rows)
    cached, prompt = await in_turns(house)

    assert at_home >= 0.99 * len(rows)
    assert {row.replica_id for row in rows} == {"r1", "r2"}, "both replicas have work"
    assert share >= 0.6
    assert share > 2 * cached / prompt
    print(f"at home {at_home} of {len(rows)}; cached {share:.0%}, in turns {cached / prompt:.0%}")


async def test_a_long_conversation_reads_only_what_is_new(house: House) -> None:
    """A conversation of thousands of tokens costs its next turn the new ones only."""
    talk = Talk(house, "epic")
    first = await talk.turn(words=1_800)
    second = await talk.turn(words=20)
    uncached = second.prompt_tokens - (second.cached_tokens or 0)

    assert first.prompt_tokens > 2_000
    assert second.replica_id == first.replica_id
    assert uncached < 150, f"{uncached} of {second.prompt_tokens} tokens were read again"


async def test_a_dead_replica_moves_its_conversation_once(house: House) -> None:
    """
    When its replica dies a conversation goes on at the other one without an error, pays for its
    cache once, and stays there when the first one is back. The others never move.
    """
    talks: list[Talk] = []
    for number in range(40):  # until two are at home on each, which is as many as slots are left
        talk = Talk(house, f"mover{number}")
        here = (await talk.turn()).replica_id
        if sum(other.rows[0].replica_id == here for other in talks) < 2:
            talks.append(talk)
        if len(talks) == 4:
            break
    for talk in talks:
        await talk.turn()
    homes = {talk.name: talk.rows[-1].replica_id for talk in talks}
    assert sorted(homes.values()) == ["r1", "r1", "r2", "r2"]
    dying = house.llamas[0]
    dying.kill()
    for talk in talks:
        await talk.turn()
        await talk.turn()
    dying.start()
    await asyncio.to_thread(house.wait_engines, MODEL, 2)
    for talk in talks:
        await talk.turn()

    for talk in talks:
        assert [row.replica_id for row in talk.rows[2:]] == ["r2"] * 3
        assert {row.outcome for row in talk.rows} == {"served"}
        half = talk.rows[2].prompt_tokens / 2
        # Those that stayed may lose their slot to a newcomer: which one, is the engine's choice.
        assert homes[talk.name] == "r2" or (talk.rows[2].cached_tokens or 0) < half
        assert (talk.rows[3].cached_tokens or 0) > half


async def test_a_hot_session_is_held_within_its_bound(house: House) -> None:
    """Fifty clients of one session on three replicas: none has more than 1.25 x the mean."""
    caps = {"in_flight": 50, "queued": 50}
    secret = house.books.key("hot", **caps, person=caps)
    for witness in house.witnesses:
        witness.tell(first_delay_s=0.15)

    async def one(client: httpx.AsyncClient, number: int) -> int:
        body = {"model": "witness", "max_tokens": 2, "messages": [
            {"role": "user", "content": f"[mark:hot/{number}] x"}]}  # fmt: skip
        headers = bearer(secret) | {"X-Session-ID": "everybody"}
        url = f"{house.url()}/v1/chat/completions"
        return (await client.post(url, json=body, headers=headers)).status_code

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        statuses = [await one(client, 0)]
        statuses += await asyncio.gather(*(one(client, number) for number in range(1, 51)))
    peaks = sorted(peak(witness.records("hot")) for witness in house.witnesses)

    assert statuses == [200] * 51
    assert peaks[-1] <= 8
    assert peaks[0] >= 4, f"the others took over what was too much for its home: {peaks}"
    for witness in house.witnesses:
        witness.reset()


@pytest.mark.parametrize(
    ("count", "turns"), [(40, 5), pytest.param(100, 10, marks=pytest.mark.long)]
)
async def test_every_turn_finds_its_sessions_replica(house: House, count: int, turns: int) -> None:
    """Many sessions over four gateways and three replicas: 99 % of all turns are at home."""
    caps = {"in_flight": 12, "queued": 100}
    secret = house.books.key(f"many{count}", **caps, person=caps)
    sessions = [f"session{number}" for number in range(count)]
    seen: dict[str, list[str]] = {session: [] for session in sessions}
    ids: dict[str, str] = {}

    async def turn(client: httpx.AsyncClient, session: str) -> None:
        body = {"model": "witness", "max_tokens": 1, "prompt_cache_key": session,
                "messages": [{"role": "user", "content": f"[mark:many/{session}] x"}]}  # fmt: skip
        url = f"{house.url()}/v1/chat/completions"
        answer = await client.post(url, json=body, headers=bearer(secret))
        assert answer.status_code == 200
        ids[answer.headers["x-request-id"]] = session

    async with httpx.AsyncClient(timeout=60) as client:
        for _ in range(turns):
            house.dice.shuffle(sessions)
            for at in range(0, count, 4):  # so few at once are never above the load bound
                await asyncio.gather(*(turn(client, s) for s in sessions[at : at + 4]))

    def rows() -> list[UsageRecord]:
        found = [row for row in house.books.records() if row.request_id in ids]
        return found if len(found) == count * turns else []

    for row in await asyncio.to_thread(wait_until, rows, 10, "all rows"):
        seen[ids[row.request_id]].append(row.replica_id)
    stayed = sum(max(map(where.count, set(where))) for where in seen.values())
    print(f"{stayed} of {count * turns} turns at home")
    assert stayed >= 0.99 * count * turns
    assert len({where[0] for where in seen.values()}) == 3
