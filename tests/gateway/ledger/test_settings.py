"""(31) Settings that cannot work are refused, or can do no harm."""

from __future__ import annotations

import pytest

from gateway.config import AGE_HANDICAP_S, BadSetting, Config
from gateway.core import sharing
from gateway.core.types import ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from tests.gateway.ledger.books import BATCH, INTERACTIVE
from tests.gateway.ledger.properties import Court
from tests.gateway.ledger.stores import Driver, LuaStore, MemoryTwin


@pytest.mark.parametrize("seconds", [1, AGE_HANDICAP_S])
def test_batch_must_be_able_to_wait_out_its_handicap(seconds: int) -> None:
    """A batch request that would leave the queue before its age can win is no setting."""
    with pytest.raises(BadSetting, match="QUEUE_TTL_BATCH_S"):
        Config.from_environment({"QUEUE_TTL_BATCH_S": str(seconds), "SECRET_KEY": "s" * 50})


@pytest.mark.parametrize("slots", [2, 3, 8])
@pytest.mark.parametrize("lent", [True, False])
def test_one_slot_stays_free_for_a_chat_whatever_is_set(slots: int, lent: bool) -> None:
    """Batch slots set to all slots or more leave one for a fresh chat."""
    for wanted in (slots, slots + 5):
        assert sharing.batch_slots(wanted, wanted, slots, lent) == slots - 1


@pytest.mark.parametrize("which", ["memory", "redis"])
def test_an_engine_that_has_fewer_slots_than_the_books_gets_no_more(
    which: str, redis_url: str
) -> None:
    """Where the engine says how many it has, the smaller number counts."""
    court = Court([MemoryTwin() if which == "memory" else LuaStore(redis_url)])
    court.house([8])
    court.person("ann", 8)
    court.send(op.WritePool(PoolPolicy("m", 2, 8, 8, 60_000, 100, 100)))
    court.send(op.Observe("r0", accepts=True, slots=3))
    for n in range(8):
        court.ask(f"b{n}", "ann", cls=BATCH)
    assert len(court.started_at) == 2
    for n in range(8):
        court.ask(f"c{n}", "ann")

    assert len(court.started_at) == 3


@pytest.mark.parametrize("which", ["memory", "redis"])
def test_a_key_s_new_caps_count_for_both_classes_at_once(which: str, redis_url: str) -> None:
    """What they let start begins in the order of rank, whichever class is written first."""
    driver = Driver(MemoryTwin() if which == "memory" else LuaStore(redis_url))
    people = [op.WriteUser(UserPolicy("u", cls, 1, 8, 100)) for cls in ServiceClass]
    driver.send(
        op.WritePool(PoolPolicy("m", 1, 4, 4, 60_000, 100, 100)),
        op.WriteKey(KeyPolicy("k", 1, True, 1, 100, False)),
        *people,
        op.WriteReplica(ReplicaPolicy("r", 1, "m", 8, 10**6)),
        op.Observe("r", True),
    )
    for name, cls in (("b1", BATCH), ("b2", BATCH), ("c1", INTERACTIVE), ("c2", INTERACTIVE)):
        driver.send(op.Enqueue(Ticket(name, "k", "u", cls, "m", 1, 0, 10, ttl_ms=10**8)))
        driver.send(op.Advance(700_000))  # what waits for a slot of batch is older than a chat
    results = driver.send(op.WriteKey(KeyPolicy("k", 2, True, 2, 100, False)))

    assert [one.ticket_id for one in results if isinstance(one, op.Started)] == ["b2", "c2"]
