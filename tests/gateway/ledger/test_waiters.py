"""Who waits hears one word, and neither an error nor a leaver costs anybody else a slot."""

from __future__ import annotations

import asyncio

from gateway.core.types import Charge, Grant, Outcome, QuotaState, ServiceClass, Ticket
from gateway.ledger.interface import KeyPolicy, PoolPolicy, Refused, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryLedger
from gateway.ledger.waiting import Waiter

INTERACTIVE = ServiceClass.INTERACTIVE
REQUESTS = Charge("requests|u", 3, 1, settles=False)


class Noting(Waiter):
    """Writes down what it hears; when granted it may do something else first."""

    def __init__(self, ledger: MemoryLedger, name: str, heard: list[str], does: str = "") -> None:
        self.ledger, self.name, self.heard, self.does = ledger, name, heard, does
        ticket = Ticket(name, "k", "u", INTERACTIVE, "m", charges=(REQUESTS,))
        ledger.admit(ticket, self)

    def stands(self, states: tuple[QuotaState, ...]) -> None:
        self.heard.append(f"{self.name} {states[0].used}")

    def granted(self, grant: Grant) -> None:
        self.heard.append(f"{self.name} granted")
        if self.does == "fails":
            raise RuntimeError
        if self.does:
            self.ledger.cancel(self.does, Outcome.EVICTED_CLIENT_GONE)

    def refused(self, refused: Refused) -> None:
        self.heard.append(f"{self.name} {refused.code}")


async def test_each_hears_where_its_limits_stand_and_then_one_word() -> None:
    """The first fails, the second makes the third leave before its grant, the fourth is refused.

    What was granted to the one that left is free again, and nobody else missed a word.
    """
    ledger, heard = MemoryLedger(), list[str]()
    ledger.write_pool(PoolPolicy("m", 1, None, None, 60_000, 1000, 1000))
    ledger.write_replica(ReplicaPolicy("r0", 1, "m", 100, 10**6))
    ledger.write_key(KeyPolicy("k", 1, True, 100, 1000, False))
    ledger.write_user(UserPolicy("u", INTERACTIVE, 1, 100, 1000))

    for name, does in (("a", "fails"), ("b", "c"), ("c", ""), ("d", "")):
        Noting(ledger, name, heard, does)
    await asyncio.sleep(0)
    assert heard == ["a 1", "a granted", "b 2", "b granted", "d 3", "d over_quota"]

    await asyncio.sleep(0)
    view = await ledger.glance()
    assert [holding.ticket_id for holding in view.running] == ["a", "b"]
