"""Ten thousand mixed requests: what the books say is what the engine itself has counted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.rows import dict_row

from portal import stores
from tests.rig.chat import Call, Caller, chat
from tests.rig.crowd import capped
from tests.rig.engine_script import prompt_tokens
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Record, Witness

pytestmark = pytest.mark.fault
AT_ONCE = 24
HEARD_LATE = 3  # tokens an engine may make before it hears of a hang-up
# Each "busy" keeps everybody from the only engine for a moment: enough of them is enough.
BUSY = {"fail_status": 503, "fail_share": 0.5, "fail_first": 25}
CLOSES_ON_REUSE = 0.05  # of the requests on a kept connection, which are then sent again


@dataclass(frozen=True)
class Sort:
    """One sort of request: how the engine treats it, and what its row must say."""

    share: int
    told: dict[str, object]
    stream: bool = True
    leaves: bool = False
    outcome: str = "served"
    exact: bool = True  # the engine told its usage, so the row is the engine's own count


SORTS = {
    "plain": Sort(20, {}, stream=False),
    "asked": Sort(25, {}),
    "every": Sort(15, {"usage": "every"}),
    "cached": Sort(10, {"cached_tokens": 3, "reasoning_tokens": 2}),
    "retried": Sort(5, BUSY, stream=False),
    "none": Sort(8, {"usage": "none"}, exact=False),
    "error": Sort(5, {"error_after": 5, "tokens": 30}, outcome="failed", exact=False),
    "broken": Sort(4, {"close_after": 7, "tokens": 30}, outcome="failed", exact=False),
    "left": Sort(8, {"tokens": 80, "decode_tps": 200}, leaves=True, outcome="aborted", exact=False),
}


def drawn(number: int, owner: str) -> list[str]:
    """Return marks `<owner>/<n>-<sort>`, in a random order that is always the same."""
    dice = random.Random(number)
    names, shares = list(SORTS), [sort.share for sort in SORTS.values()]
    return [f"{owner}/{n}-{dice.choices(names, shares)[0]}" for n in range(number)]


def sort_of(mark: str) -> Sort:
    return SORTS[mark.rpartition("-")[2]]


async def send(client: Caller, key: str, marks: list[str]) -> list[Call]:
    """Send them all, so many at once."""
    room, dice = asyncio.Semaphore(AT_ONCE), random.Random(5)

    async def one(mark: str) -> Call:
        sort = sort_of(mark)
        body = chat("witness", mark, stream=sort.stream, max_tokens=dice.choice((4, 9, 40)))
        if not sort.exact or sort.leaves:
            body["max_tokens"] = 80
        body["messages"][0]["content"] += " word" * dice.randrange(60)
        async with room:
            return await client.ask(
                key, body, leave_after=dice.randint(1, 20) if sort.leaves else -1
            )

    return await asyncio.gather(*(one(mark) for mark in marks))


def rows_of(product: Product, owner: str, number: int) -> dict[str, dict[str, object]]:
    """Return the usage row of each mark, once there is one for each."""

    def read() -> list[dict[str, object]]:
        with psycopg.connect(stores.postgres_url(product.data_dir), row_factory=dict_row) as link:
            query = "SELECT * FROM usage_event WHERE client_request_id LIKE %s"
            found = link.execute(query, [f"{owner}/%"]).fetchall()
        return found if len(found) >= number else []

    found = wait_until(read, 30, f"{number} rows are written")
    assert len(found) == number
    return {str(row["client_request_id"]): row for row in found}


def wrong(mark: str, call: Call, row: dict[str, object], mine: list[Record]) -> str:
    """Return what does not agree about one request; "" when all does."""
    sort, made = sort_of(mark), sum(record.tokens for record in mine)
    counted, prompt = row["completion_tokens"], prompt_tokens(mine[-1].json)
    assert isinstance(counted, int)
    if row["outcome"] != sort.outcome:
        return f"ended as {row['outcome']}, not {sort.outcome}"
    if row["estimated"] is sort.exact:
        return f"estimated is {row['estimated']}"
    if sort.exact and (row["prompt_tokens"], counted) != (prompt, made):
        return f"{row['prompt_tokens']}+{counted} counted, {prompt}+{made} made"
    if sort.outcome != "aborted" and counted != made:
        return f"{counted} counted, {made} made"
    passed = max(0, len(call.events) - 1)  # the first event is the role
    if sort.leaves and not passed <= counted <= made:
        return f"{counted} counted, {made} made, the client had seen {passed}"
    if sort.leaves and made - counted > HEARD_LATE:
        return f"{counted} counted, {made} made: more than the tokens after the last event"
    return ""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.long)])
async def test_the_books_are_the_engine_s_own_counters(
    product: Product, client: Caller, witness: Witness, number: int
) -> None:
    """
    Errors, retries, running usage in each chunk, usage that never comes, clients that leave: sums
    are the engine's own for all that ended by themselves, and what was estimated is marked so.
    """
    owner = f"mix{number}"
    keys = await asyncio.to_thread(capped, product, {owner: ("interactive", AT_ONCE)})
    rules = {f"-{name}": sort.told for name, sort in SORTS.items()}
    witness.tell(tokens=40, closes_on_reuse=CLOSES_ON_REUSE, rules=rules)
    marks = drawn(number, owner)
    before = witness.counters()

    calls = await send(client, keys[owner], marks)
    await asyncio.to_thread(wait_until, witness.idle, 10, "the engine has ended")

    rows, after = await asyncio.to_thread(rows_of, product, owner, number), witness.counters()
    at_engine: dict[str, list[Record]] = {}
    for record in witness.records(owner):
        at_engine.setdefault(record.mark, []).append(record)
    assert any(len(found) > 1 for found in at_engine.values()), "nothing was sent again"
    told = {call.mark: wrong(call.mark, call, rows[call.mark], at_engine[call.mark])
            for call in calls}  # fmt: skip
    assert {mark: what for mark, what in told.items() if what} == {}

    counted = Counter[str]()
    for row in rows.values():
        counted[str(row["outcome"])] += int(str(row["completion_tokens"]))
    aborted = {c.mark for c in calls if sort_of(c.mark).leaves}
    late = sum(sum(r.tokens for r in at_engine[m]) for m in aborted) - counted["aborted"]
    assert after["generated"] - before["generated"] - late == sum(counted.values())
    print(f"{number} requests, {dict(counted)} tokens, {late} after the last event")
