"""Four gateways behind one port are one gateway: caps and shares hold at the engine itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from tests.rig import checkers
from tests.rig.chat import Caller, chat
from tests.rig.crowd import ask_apart, capped
from tests.rig.engine_script import Script
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Record, Witness, mean_overlap, peak

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
RUNS = count(1)
AGAIN = [0, *(pytest.param(run, marks=pytest.mark.long) for run in range(1, 20))]
IDLE_S = 61  # a pool lends its idle slots to batch a minute after the last chat
SLOTS = 8


@pytest.fixture(scope="module")
def wide(doomed: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Run an engine with more slots than all caps together, so that the caps alone bind."""
    script = Script(model="wide", slots=160)
    engine = Witness(tmp_path_factory.mktemp("wide"), script).start()
    doomed.engines({"wide": engine.url}, slots=160)
    yield engine
    engine.stop()


def timely(records: Sequence[Record]) -> float:
    """Return how many were at the engine on average while others still waited."""
    last_start_s = max(record.arrived_s for record in records)
    return mean_overlap(records, until_s=last_start_s)


@pytest.mark.parametrize("run", AGAIN)
async def test_a_cap_holds_over_all_gateways(doomed: Product, witness: Witness, run: int) -> None:
    """Requests at once on one key with cap 3: all served, three at a time and never four."""
    owner, number = f"crowd{next(RUNS)}", 200 if run else 80
    keys = await asyncio.to_thread(capped, doomed, {owner: ("interactive", 3)})
    witness.tell(first_delay_s=0.5 if run else 0.2)
    calls = await asyncio.gather(
        *(ask_apart(doomed, keys[owner], f"{owner}/{one}") for one in range(number))
    )
    records = witness.records(owner)
    print(f"{number} requests: peak {peak(records)}, mean {timely(records):.3f}")
    assert [(c.status, c.code) for c in calls if not c.whole] == []
    assert len(records) == number
    assert checkers.nobody_elses(calls) == []
    assert peak(records) == 3
    assert timely(records) >= (2.8 if run else 2.0)


@pytest.mark.parametrize("run", AGAIN)
async def test_fifty_caps_hold_at_once(doomed: Product, wide: Witness, run: int) -> None:
    """Fifty keys with caps from one to four, all sending more: each has exactly its cap."""
    caps = {f"mixed{next(RUNS)}-{one}": 1 + one % 4 for one in range(50)}
    keys = await asyncio.to_thread(
        capped, doomed, {owner: ("interactive", cap) for owner, cap in caps.items()}
    )
    wide.tell(first_delay_s=1.5 if run else 0.7)
    calls = await asyncio.gather(
        *(
            ask_apart(doomed, keys[owner], f"{owner}/{one}", "wide")
            for owner, cap in caps.items()
            for one in range(3 * cap)
        )
    )
    records = [record for record in wide.records() if record.owner in caps]
    of_key = {owner: [r for r in records if r.owner == owner] for owner in caps}
    full = sum(timely(mine) / caps[owner] for owner, mine in of_key.items()) / len(caps)
    print(f"{len(records)} requests on 50 keys: on average {full:.3f} of the cap used")
    assert [(c.status, c.code) for c in calls if not c.whole] == []
    assert checkers.nobody_elses(calls) == []
    assert {owner: peak(mine) for owner, mine in of_key.items()} == caps
    assert full >= (2.8 / 3 if run else 0.6)


@pytest.mark.parametrize("run", AGAIN)
async def test_batch_steps_aside_for_chat_and_takes_what_is_idle(
    doomed: Product, witness: Witness, run: int
) -> None:
    """
    Two batch keys of two users on eight slots never hold more than two while somebody chats, and
    up to seven when nobody does, one owner alone included; the chat that comes then starts at
    once.
    """
    names = [f"{kind}{next(RUNS)}" for kind in ("talker", "ann", "ben")]
    talker, ann, ben = names
    kinds = {talker: ("interactive", 4), ann: ("batch", 0), ben: ("batch", 0)}
    keys = await asyncio.to_thread(capped, doomed, kinds)
    witness.tell(decode_tps=40, tokens=12, rules={f"{talker}/talk": {"first_delay_s": 60}})

    async def flood(owners: Sequence[str], phase: str, each: int) -> list[Record]:
        calls = await asyncio.gather(
            *(
                ask_apart(doomed, keys[owner], f"{owner}/{phase}-{one}")
                for owner in owners
                for one in range(each)
            )
        )
        assert [(c.status, c.code) for c in calls if not c.whole] == []
        marks = {call.mark for call in calls}
        return [record for record in witness.records() if record.mark in marks]

    doomed.advance(IDLE_S)
    flooding = asyncio.create_task(flood([ann, ben], "idle", 14))
    await asyncio.to_thread(
        wait_until, lambda: witness.counters()["running"] == SLOTS - 1, 10, "seven run"
    )
    fresh = await ask_apart(doomed, keys[talker], f"{talker}/fresh")
    both = await flooding
    (start,) = (r for r in witness.records(talker) if r.mark == fresh.mark)
    (row,) = doomed.usage(fresh.mark)
    waited_s = start.arrived_s - fresh.invoked_s
    print(f"a chat beside seven batch requests was at the engine after {waited_s:.2f} s")
    assert fresh.whole
    assert row["queue_wait_ms"] < 250  # a slot was free: it waited for none of theirs
    async with Caller(doomed.url) as client:
        chatting = asyncio.create_task(client.ask(keys[talker], chat("witness", f"{talker}/talk")))
        await asyncio.to_thread(wait_until, lambda: witness.records(talker), 10, "somebody chats")
        beside = await flood([ann, ben], "beside", 5)
        assert not chatting.done()
        chatting.cancel()
        await asyncio.gather(chatting, return_exceptions=True)
    after = await flood([ann], "after", 4)
    doomed.advance(IDLE_S)
    alone = await flood([ann], "alone", 14)

    peaks = {
        "idle": peak(both), "beside a chat": peak(beside), "a moment after": peak(after),
        "alone": peak(alone),
    }  # fmt: skip
    print(f"batch held at once: {peaks}")
    assert peaks == {
        "idle": SLOTS - 1, "beside a chat": 2, "a moment after": 2, "alone": SLOTS - 1,
    }  # fmt: skip
