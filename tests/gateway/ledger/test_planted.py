"""Planted violations: with one rule of the script switched off, its test must turn red.

A property test that cannot fail proves nothing. Each row takes one line out of `step.lua` and
names the rule of docs/scheduler.md that the random histories must then find broken.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gateway.ledger.redis import SCRIPT
from tests.gateway.ledger.stores import LuaStore
from tests.gateway.ledger.world import History, Sizes, Violation

PLAIN = Sizes(weights=False, prompts=False)
CALM = Sizes(weights=False, prompts=False, caps_change=False, health_changes=False)
PATIENT = replace(CALM, patient=True, chat=0.5)
NIGHT = replace(CALM, chat=0.0)
BIG = Sizes()
MOST_HISTORIES = 80

PLANTED = {
    "the key's cap": (
        "if L.get('k:' .. e.owner_key) + e.w > tonumber(key[3]) then return false end", "", PLAIN,
    ),
    "the user's cap": (
        "return L.get('u:' .. e.owner_user) + e.w <= ", "return true or ", PLAIN,
    ),
    "the batch slots": (
        "if L.get('b:' .. e.pool) + e.w > L.batch_limit(e.pool) then", "if false then", PLAIN,
    ),
    "the slots of a replica": ("if held + e.w > r.now then", "if held + e.w > r.now + 1 then", BIG),
    "health": ("r.accepts = r.accepts and s.accepts", "", PLAIN),
    "the prefill budget": (
        "if L.get('rp:' .. r.name) + L.prefill_cost(r, e.u) > max(1, r.budget) then",
        "if false then", BIG,
    ),
    "one long prompt": (
        "if e.u >= LONG_PROMPT and L.get('rl:' .. r.name) > 0 then", "if false then", BIG,
    ),
    "the handicap": ("SILENCE, LIMIT = 600000,", "SILENCE, LIMIT = 0,", PLAIN),
    "ageing": ("L.walk(prefix .. 'ready:' .. pool, true, admissible)\n      or ", "", PATIENT),
    "interactive first": (
        "return (not candidate or L.before(e, candidate)) and admissible(e)",
        "return (not candidate) and admissible(e)", PLAIN,
    ),
    "first come, first served": (
        "call('ZRANGE', start .. key, 0, 0)[1]", "call('ZRANGE', start .. key, -1, -1)[1]", PLAIN,
    ),
    "waking the parked": (
        "  L.touch(e.owner_user)\n  -- Behind an application key",
        "  -- Behind an application key", PLAIN,
    ),
    "a constant rank": ("e.avoid = avoid\n", "e.avoid = avoid\n  e.since = now\n", PLAIN),
    "the accrual window": ("if size <= 0 then return end", "if true then return end", PLAIN),
    "giving slots back": ("  L.count_held(e, -e.w)\n", "", PLAIN),
    "lending idle slots": ("if lent and not cap then return true end", "", NIGHT),
    "taking slots back": (
        "if L.get('pt:' .. pool .. '\\ti') > 0 then return false end", "", CALM,
    ),
    "cancelling": ("if e then L.drop_queued(e) end", "", PLAIN),
    "timeouts": ("for _, e in ipairs(L.late_in(DEADLINES, now)) do L.evict(e) end", "", PLAIN),
}  # fmt: skip


def histories_break(url: str, script: bytes, sizes: Sizes) -> str:
    """Return the rule found broken, "" when the histories found none."""
    store = LuaStore(url, script)
    for seed in range(MOST_HISTORIES):
        store.client.flushdb()
        try:
            history = History([store], random.Random(seed), sizes)
            history.play(40)
            history.drain()
        except Violation as violation:
            return str(violation)
    return ""


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_rule_switched_off_is_found(redis_url: str, name: str) -> None:
    """
    The random histories find each rule that is taken out of the script.
    """
    line, instead, sizes = PLANTED[name]
    script = SCRIPT.decode()
    assert script.count(line) == 1, "the line to take out is no longer there"

    assert histories_break(redis_url, script.replace(line, instead).encode(), sizes)
