"""Random histories: both ledgers give the same grants, and neither breaks a rule."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.ledger.stores import LuaStore, MemoryTwin
from tests.gateway.ledger.world import History, Sizes

PLAIN = Sizes(weights=False, prompts=False)
BIG = Sizes()
SESSIONS = Sizes(sessions=True)
SHARED = Sizes(sessions=True, gateways=3)
PATIENT = Sizes(weights=False, prompts=False, patient=True, chat=0.5)
NIGHT = Sizes(chat=0.0)
QUOTAS = Sizes(weights=False, prompts=False, gateways=2, quotas=True)
WORLDS = [PLAIN, BIG, SESSIONS, SHARED, PATIENT, NIGHT, QUOTAS]
NAMES = ["plain", "big", "sessions", "shared", "patient", "night", "quotas"]

SHORT = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
LONG = settings(SHORT, max_examples=200, derandomize=False)


def both_agree(url: str, seed: int, sizes: Sizes, steps: int = 60) -> None:
    lua, memory = LuaStore(url), MemoryTwin()
    lua.client.flushdb()
    history = History([lua, memory], random.Random(seed), sizes)
    for _ in range(steps // 20):
        history.play(20)
        for driver in history.drivers[history.names[0]]:
            assert not driver.store.mismatches()
    history.drain()
    for driver in history.drivers[history.names[0]]:
        assert not driver.store.mismatches()
    lua.client.close()


@pytest.mark.parametrize("sizes", WORLDS, ids=NAMES)
@given(seed=st.integers(0, 10**9))
@SHORT
def test_both_ledgers_give_the_same_grants_and_keep_the_rules(
    redis_url: str, sizes: Sizes, seed: int
) -> None:
    """
    Whatever happens in whatever order, memory and Redis start the same tickets, no cap or budget
    is ever passed, nothing that may start waits, and every count equals its recount.
    """
    both_agree(redis_url, seed, sizes)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("sizes", WORLDS, ids=NAMES)
@given(seed=st.integers(0, 10**9))
@LONG
def test_both_ledgers_agree_for_long(redis_url: str, sizes: Sizes, seed: int) -> None:
    """
    The same over thousands of histories.
    """
    both_agree(redis_url, seed, sizes, steps=120)
