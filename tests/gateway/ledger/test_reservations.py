"""Slots reserved for a group: the others together never hold more than the rest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import PoolPolicy
from gateway.ledger.lines import read_ticket, ticket_line
from gateway.ledger.script import SCRIPT
from tests.gateway.ledger.books import INTERACTIVE, POOL, Books, Known, Violation, hold
from tests.gateway.ledger.stores import LuaStore, MemoryTwin, plain
from tests.gateway.ledger.test_histories import SHORT
from tests.gateway.ledger.world import History, Sizes

PLAIN = Sizes(weights=False, prompts=False)
BIG = Sizes()
SHARED = Sizes(weights=False, prompts=False, gateways=2)
GROUPS = {"u0": "course", "u1": "course", "u2": "demo"}


@dataclass
class ReservedBooks(Books):
    """Books that also know what is reserved now."""

    reserved: dict[str, int] = field(default_factory=dict)

    def up(self, known: Known) -> bool:
        return self.accepts[known.replica]

    def kept(self, group: str) -> int:
        """Return the free slots that are other groups'."""
        return sum(
            max(0, n - self.held(lambda k, g=g: self.up(k) and k.ticket.group == g))
            for g, n in self.reserved.items()
            if g != group
        )

    def pool_room(self, known: Known) -> bool:
        ticket = known.ticket
        free = self.total() - self.held(self.up)
        kept = self.kept(ticket.group)
        return super().pool_room(known) and not (kept and free - kept < ticket.weight)

    def _judge_caps(self, known: Known, replica: str) -> None:
        super()._judge_caps(known, replica)
        for group, slots in self.reserved.items():
            if known.ticket.group != group:
                others = self.held(lambda k, g=group: self.up(k) and k.ticket.group != g)
                most = max(0, self.total() - slots)
                hold(others + known.ticket.weight <= most, "others hold what is reserved (7)")


class ReservedHistory(History):
    """A history in which reservations begin and end, and three of the users have a group."""

    books: ReservedBooks

    def _register(self) -> None:
        self.books = ReservedBooks(judges=self.books.judges)
        super()._register()
        self._send(self.names[0], *self._reserve())

    def _change(self) -> list[op.Operation]:
        return self._reserve() if self.rng.random() < 0.4 else super()._change()

    def _reserve(self) -> list[op.Operation]:
        self.version += 1
        b, rng = self.books, self.rng
        total = sum(b.slots.values())
        wanted = {"course": rng.randint(0, total), "demo": rng.choice([0, 0, 1])}
        b.reserved = wanted if rng.random() < 0.8 else {}
        reserved = tuple(sorted(b.reserved.items()))
        return [
            op.WritePool(PoolPolicy(POOL, self.version, None, None, 60_000, 1000, 1000, reserved))
        ]

    def _group(self, user: str) -> str:
        return GROUPS.get(user, "")


@pytest.mark.parametrize("sizes", [PLAIN, BIG, SHARED], ids=["plain", "big", "shared"])
@given(seed=st.integers(0, 10**9))
@SHORT
def test_others_never_hold_what_is_reserved(redis_url: str, sizes: Sizes, seed: int) -> None:
    """
    While slots are reserved for a group, all others together never start beyond the rest, in
    both ledgers alike; nobody else waits beside a slot that is free to them.
    """
    lua, memory = LuaStore(redis_url), MemoryTwin()
    lua.client.flushdb()
    history = ReservedHistory([lua, memory], random.Random(seed), sizes)
    for _ in range(3):
        history.play(20)
        for driver in history.drivers[history.names[0]]:
            assert not driver.store.mismatches()
    history.books.reserved = {}
    history.version += 1
    end = PoolPolicy(POOL, history.version, None, None, 60_000, 1000, 1000)
    history._send(history.names[0], op.WritePool(end))
    history.drain()
    lua.client.close()


@pytest.mark.parametrize(
    "line",
    [
        "if p.reserved and L.is_kept(e.pool, e.w, e.group) then",
        "if e.group then L.add('gh:'",
        "  if L.is_all_kept(pool) then return false end",
    ],
)
def test_a_reservation_switched_off_is_found(redis_url: str, line: str) -> None:
    """
    With its rule or its count taken out of the script, the histories complain; with the early
    end taken to be always true, members wait beside their own slots, and they complain of that.
    """
    script = SCRIPT.decode()
    assert script.count(line) == 1, "the line to take out is no longer there"
    instead = {
        "if p": "if false then",
        "if e": "if false then L.add('gh:'",
        "  if": "  if pools[pool].reserved and L.is_kept(pool, 1) then return false end",
    }[line[:4]]
    store = LuaStore(redis_url, script.replace(line, instead).encode())
    found = ""
    for seed in range(60):
        store.client.flushdb()
        try:
            ReservedHistory([store], random.Random(seed), PLAIN).play(60)
        except Violation as violation:
            found = str(violation)
            break
    assert found


def test_a_ticket_keeps_its_group_on_its_way_through_the_store() -> None:
    """
    A ticket with a group, and one without beside a record, come back as they were written.
    """
    record = b'{"a":"b"}'
    for group, interrupted in (("", record), ("7", record), ("7", b"")):
        ticket = Ticket("t", "k", "u", INTERACTIVE, POOL, interrupted=interrupted, group=group)
        assert plain(read_ticket("t", ticket_line(ticket))) == plain(ticket)
