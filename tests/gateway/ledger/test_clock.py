"""A host clock that is moved changes nothing: both ledgers go by their own time."""

from __future__ import annotations

import pytest
import redis

from gateway.ledger import operations as op
from gateway.ledger.memory import LONGEST_STEP_MS, MemoryStore
from gateway.ledger.redis import KEYS
from tests.gateway.ledger.stores import LuaStore

HOUR_MS = 3_600_000
META = KEYS + "meta"


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_the_shared_ledger_moves_a_second_at_most(redis_url: str, step_ms: int) -> None:
    """A host clock stepped by an hour either way moves ledger time by 0 to 1 second."""
    store = LuaStore(redis_url)
    before = store.call(op.Call("g", 0, 1, (op.Beat(),)), flags="1t")
    client = redis.Redis.from_url(redis_url)
    seen = int(client.hget(META, "clock"))  # what the host's clock said then

    client.hset(META, "clock", seen - step_ms)
    after = store.call(op.Call("g", 1, 2, (op.Beat(),)), flags="1t")

    assert 0 <= after.now_ms - before.now_ms <= LONGEST_STEP_MS


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
def test_the_memory_ledger_moves_a_second_at_most(step_ms: int) -> None:
    """The same for the ledger of one process, whatever time it is told has passed."""
    store = MemoryStore()
    before = store.call(op.Call("g", 0, 1, (op.Beat(),)))

    after = store.call(op.Call("g", 1, 2, (op.Beat(),)), elapsed_ms=step_ms)

    assert 0 <= after.now_ms - before.now_ms <= LONGEST_STEP_MS
