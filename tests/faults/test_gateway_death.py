"""A gateway among several is killed or frozen: its own comes back, nothing else moves."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from itertools import count

import pytest

from tests.rig import checkers
from tests.rig.chat import Call, chat
from tests.rig.crowd import caller_of, capped
from tests.rig.entries import Entry, entries
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
SILENCE_S, LIMIT_S = 1.0, 6.0  # 0.7 s and a tick; the heartbeat limit and a second
BUSY_MACHINE_S = 1.5  # a process that is late by so much says nothing about the rule
RUNS = count(1)
AGAIN = [0, *(pytest.param(run, marks=pytest.mark.long) for run in range(1, 20))]


class Scene:
    """Chats sent through gateways of our choice, and a look at what becomes of them."""

    def __init__(self, product: Product, keys: dict[str, str]) -> None:
        self._product, self._keys = product, keys
        self._tasks: list[asyncio.Task[Call]] = []

    async def __aenter__(self) -> Scene:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ask(self, pid: int, mark: str) -> asyncio.Task[Call]:
        """Send a chat through the gateway with this pid."""
        self._tasks.append(asyncio.create_task(self._ask(pid, mark)))
        return self._tasks[-1]

    async def _ask(self, pid: int, mark: str) -> Call:
        async with await caller_of(self._product, pid) as client:
            return await client.ask(self._keys[mark.partition("/")[0]], chat("witness", mark))

    async def seen(self, true: Callable[[], bool], what: str, timeout_s: float = 20) -> float:
        """Wait for what running requests bring about; return when it was."""
        give_up = time.monotonic() + timeout_s
        while not await asyncio.to_thread(true):
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()
            assert time.monotonic() < give_up, f"after {timeout_s:g} s still not: {what}"
            await asyncio.sleep(0.01)
        return time.monotonic()


class Watch:
    """What the ledger held of one gateway, looked at all the time from its death on."""

    def __init__(self, product: Product, pid: int) -> None:
        self._product, self._pid = product, pid
        self._began_s = time.monotonic()
        self.held_before = {e.ticket for e in self.mine() if e.held}
        self.wasted: set[str] = set()
        self.queued_until_s = self.held_until_s = 0.0

    def mine(self) -> list[Entry]:
        """Return its entries now."""
        return [entry for entry in entries(self._product) if entry.pid == self._pid]

    async def until_gone(self) -> None:
        """Look until it has nothing left in the ledger."""
        while mine := await asyncio.to_thread(self.mine):
            passed_s = time.monotonic() - self._began_s
            assert passed_s < LIMIT_S + 10, mine
            held = {entry.ticket for entry in mine if entry.held}
            self.wasted |= held - self.held_before
            if len(held) < len(mine):
                self.queued_until_s = passed_s
            if held:
                self.held_until_s = passed_s
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("run", AGAIN)
async def test_a_killed_gateway_leaves_nothing_behind(
    doomed: Product, witness: Witness, run: int
) -> None:
    """
    kill -9 with requests queued, granted, accepted, at the first byte and streaming: its queue
    is gone within a second, its slots within the heartbeat limit and a second, nobody else's
    change, and no slot that comes free is given to the dead.
    """
    tag = f"{next(RUNS)}"
    queued, granted, accepted, begun, streaming, steady = names = [
        f"{step}{tag}" for step in ("queued", "granted", "accepted", "begun", "streaming", "steady")
    ]
    keys = await asyncio.to_thread(capped, doomed, dict.fromkeys(names, ("interactive", 1)))
    witness.tell(
        tokens=4,
        rules={
            "/holds": {"first_delay_s": 60}, accepted: {"first_delay_s": 60},
            begun: {"hang_after": 1}, streaming: {"decode_tps": 5, "tokens": 1000},
            f"{steady}/long": {"decode_tps": 4, "tokens": 36},
        },
    )  # fmt: skip
    victim, other = doomed.parts()["gateway"][:2]

    def waiting(pid: int, number: int) -> Callable[[], bool]:
        return lambda: sum(e.pid == pid and not e.held for e in entries(doomed)) == number

    def at_engine(*marks: str) -> Callable[[], bool]:
        return lambda: {record.mark for record in witness.records()} >= set(marks)

    async with Scene(doomed, keys) as scene:
        ask, seen = scene.ask, scene.seen
        lost = [ask(victim, f"{owner}/1") for owner in (accepted, begun, streaming)]
        holders = [ask(other, f"{owner}/holds") for owner in (queued, granted)]
        going = [ask(other, f"{steady}/long")]
        first = [f"{owner}/1" for owner in (accepted, begun, streaming)]
        first += [f"{steady}/long", f"{queued}/holds", f"{granted}/holds"]
        await seen(at_engine(*first), "six requests run")
        lost += [ask(victim, f"{owner}/1") for owner in (queued, queued, granted)]
        await seen(waiting(victim, 3), "three wait at the victim")
        heirs = [ask(other, f"{owner}/2") for owner in (queued, granted)]
        going.append(ask(other, f"{steady}/next"))
        await seen(waiting(other, 3), "three wait at the other")

        # A grant that is never fetched: frozen, it cannot say that it takes it.
        os.kill(victim, signal.SIGSTOP)
        holders[1].cancel()
        await seen(lambda: not waiting(victim, 3)() or at_engine(f"{granted}/2")(), "a grant")
        watch = Watch(doomed, victim)
        unread = len(watch.held_before) == 4
        os.kill(victim, signal.SIGKILL)
        killed_s = time.monotonic()
        watching = asyncio.create_task(watch.until_gone())
        granted_s = await seen(at_engine(f"{granted}/2"), "the unread grant is undone") - killed_s
        await asyncio.sleep(max(0.0, killed_s + SILENCE_S - time.monotonic()))
        holders[0].cancel()
        freed_s = time.monotonic()
        passed_s = await seen(at_engine(f"{queued}/2"), "the living get the free slot") - freed_s
        await watching

        print(
            f"after kill -9: queue gone {watch.queued_until_s:.2f} s, unread grant ({unread})"
            f" passed on {granted_s:.2f} s, slots free {watch.held_until_s:.2f} s,"
            f" a free slot taken in {passed_s:.2f} s, wasted grants {len(watch.wasted)}"
        )
        assert watch.wasted == set()
        assert watch.queued_until_s <= SILENCE_S + BUSY_MACHINE_S
        assert granted_s <= SILENCE_S + BUSY_MACHINE_S
        assert passed_s <= BUSY_MACHINE_S
        assert LIMIT_S - 2.5 < watch.held_until_s <= LIMIT_S + BUSY_MACHINE_S
        assert [call.whole for call in await asyncio.gather(*lost)] == [False] * len(lost)
        assert [call.whole for call in await asyncio.gather(*heirs, *going)] == [True] * 4
    records = [record for record in witness.records() if record.owner in names]
    assert checkers.caps_held(records, dict.fromkeys(names, 1)) == []
    assert sum(record.owner == steady for record in records) == 2  # neither was tried again
    for owner in (accepted, begun, streaming):
        (row,) = doomed.usage(f"{owner}/1")
        assert row["outcome"] == "interrupted"
    wait_until(lambda: len(doomed.parts()["gateway"]) == 4, 30, "it is started again")


@pytest.mark.parametrize("run", AGAIN)
async def test_a_frozen_gateway_takes_its_streams_back(
    doomed: Product, witness: Witness, run: int
) -> None:
    """
    A gateway paused past the heartbeat limit loses its slots to others; resumed, it says what it
    still streams, the stream ends whole, and its key starts nothing until it is below its cap.
    """
    owner = f"frozen{next(RUNS)}"
    keys = await asyncio.to_thread(capped, doomed, {owner: ("interactive", 1)})
    witness.tell(tokens=4, rules={f"{owner}/stream": {"decode_tps": 3, "tokens": 33}})
    frozen, other = doomed.parts()["gateway"][:2]

    def of(pid: int) -> list[bool]:
        return sorted(entry.held for entry in entries(doomed) if entry.pid == pid)

    def arrived(mark: str) -> bool:
        return any(record.mark == mark for record in witness.records(owner))

    async with Scene(doomed, keys) as scene:
        ask, seen = scene.ask, scene.seen
        stream = ask(frozen, f"{owner}/stream")
        await seen(lambda: arrived(f"{owner}/stream"), "it streams")
        behind = ask(frozen, f"{owner}/behind")
        await seen(lambda: of(frozen) == [False, True], "one waits behind it")
        heir = ask(other, f"{owner}/heir")
        await seen(lambda: of(other) == [False], "one waits elsewhere")
        os.kill(frozen, signal.SIGSTOP)
        try:
            since_s = time.monotonic()
            reaped_s = await seen(lambda: of(frozen) == [], "it is reaped") - since_s
            await seen(lambda: arrived(f"{owner}/heir"), "its slot goes to the next")
        finally:
            os.kill(frozen, signal.SIGCONT)
        resumed_s = time.monotonic()
        back_s = await seen(lambda: of(frozen) == [False, True], "both are back") - resumed_s
        calls = await asyncio.gather(stream, heir, behind)
    print(f"reaped {reaped_s:.2f} s after the pause began, adopted {back_s:.2f} s after its end")
    assert [call.whole for call in calls] == [True] * 3
    assert reaped_s <= LIMIT_S + BUSY_MACHINE_S
    ended = {record.mark: record.ended_s or 0.0 for record in witness.records(owner)}
    late = next(r for r in witness.records(owner) if r.mark == f"{owner}/behind")
    assert late.arrived_s >= max(ended[f"{owner}/stream"], ended[f"{owner}/heir"])

    def on_the_books() -> list[tuple[str, int]]:
        rows = doomed.usage(f"{owner}/stream")
        return [(row["outcome"], row["completion_tokens"]) for row in rows]

    # The reap said "interrupted"; what the stream became takes the place of that.
    wait_until(lambda: on_the_books() == [("served", 33)], 15, "its row is the true one")
