"""Several people behind one application key, on both ledgers."""

from __future__ import annotations

import pytest

from gateway.core.types import Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from tests.gateway.ledger.stores import Driver, LuaStore, MemoryTwin

INTERACTIVE = ServiceClass.INTERACTIVE


@pytest.mark.parametrize("which", ["memory", "redis"])
def test_people_behind_one_key_take_turns(which: str, redis_url: str) -> None:
    """
    Sixteen tickets of one person and eight of another under a key with cap two: turn by turn.
    """
    driver = Driver(MemoryTwin() if which == "memory" else LuaStore(redis_url))
    driver.send(
        op.WritePool(PoolPolicy("m", 1, None, None, 60_000, 1000, 1000)),
        op.WriteReplica(ReplicaPolicy("r0", 1, "m", 8, 10**6)),
        op.WriteKey(KeyPolicy("k", 1, True, 2, 1000, False)),
        *(op.WriteUser(UserPolicy(user, INTERACTIVE, 1, 64, 1000)) for user in ("ann", "ben")),
    )
    order: list[str] = []

    def send(operation: op.Operation) -> None:
        order.extend(r.ticket_id for r in driver.send(operation) if isinstance(r, op.Started))

    for user, count in (("ann", 16), ("ben", 8)):
        for n in range(count):
            ticket = Ticket(
                f"{user}{n}", "k", user, INTERACTIVE, "m", prefill_tokens=10, output_tokens=16
            )
            send(op.Enqueue(ticket))
    for done in range(24):
        send(op.Release(order[done], Outcome.SERVED, 10, 16, tokens=26))

    # ben first draws level with the two that ann has in flight when he comes.
    assert order[:4] == ["ann0", "ann1", "ben0", "ben1"]
    assert order[5:16:2] == [f"ben{n}" for n in range(2, 8)]
