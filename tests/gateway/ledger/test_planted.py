"""Planted violations: with one rule of the script switched off, its test must turn red.

A property test that cannot fail proves nothing. Each row takes one line out of the script and
names the rule of docs/scheduler.md that the random histories must then find broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from gateway.ledger.script import SCRIPT
from tests.gateway.ledger import properties
from tests.gateway.ledger.properties import Court
from tests.gateway.ledger.stores import LuaStore
from tests.gateway.ledger.world import History, Sizes, Violation

PLAIN = Sizes(weights=False, prompts=False)
CALM = Sizes(weights=False, prompts=False, caps_change=False, health_changes=False)
PATIENT = replace(CALM, patient=True, chat=0.5)
NIGHT = replace(CALM, chat=0.0)
BIG = Sizes()
MOST_HISTORIES = 80
MOST_STORIES = 10

PLANTED = {
    "the key's cap": (
        "if L.get(e.n_k) + e.w > tonumber(key[3]) then return false end", "", PLAIN,
    ),
    "the user's cap": (
        "return L.get(e.n_u) + e.w <= ", "return true or ", PLAIN,
    ),
    "the batch slots": (
        "if L.get(p.n_b) + e.w > L.batch_limit(e.pool) then", "if false then", PLAIN,
    ),
    "the slots of a replica": ("if held + e.w > r.now then", "if held + e.w > r.now + 1 then", BIG),
    "health": ("r.accepts = r.accepts and s.accepts", "", PLAIN),
    "the prefill budget": (
        "if L.get(r.n_read) + L.prefill_cost(r, e.u) > max(1, r.budget) then",
        "if false then", BIG,
    ),
    "one long prompt": (
        "if e.u >= K.LONG_PROMPT and L.get(r.n_long) > 0 then", "if false then", BIG,
    ),
    "the handicap": ("HANDICAP = 600000,", "HANDICAP = 0,", PLAIN),
    "ageing": ("L.walk(p.k_ready, true, admissible)\n      or ", "", PATIENT),
    "interactive first": (
        "return (not candidate or L.before(e, candidate)) and admissible(e)",
        "return (not candidate) and admissible(e)", PLAIN,
    ),
    "first come, first served": (
        "call('ZRANGE', queue, from, ", "call('ZREVRANGE', queue, from, ", PLAIN,
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
        "if L.get(p.chat.pt) > 0 then return false end", "", CALM,
    ),
    "cancelling": ("if e then L.drop_queued(e) end", "", PLAIN),
    "timeouts": ("for _, e in ipairs(L.late_in(K.DEADLINES, now)) do L.evict(e) end", "", PLAIN),
}  # fmt: skip


#: Rules whose loss a story of properties.py must notice: property, line, instead, story.
Story = Callable[[Court, int], None]
STORIES: dict[str, tuple[str, str, Story]] = {
    "(6) the aged go before younger chats": (
        "return (not candidate or L.before(e, candidate)) and admissible(e)",
        "return admissible(e)", properties.aged_batch_starts_in_time,
    ),
    "(10) the one who had least goes first": (
        "call('ZADD', fair, L.service_of(owner_user), new)", "call('ZADD', fair, 0, new)",
        properties.equals_are_served_alike,
    ),
    "(10) what was used is charged": (
        "  L.serve(e.owner_user, used - e.charge, -e.charge)\n",
        "  L.serve(e.owner_user, -e.charge, -e.charge)\n", properties.equals_are_served_alike,
    ),
    "(11) idling is no credit": (
        "if least and tonumber(least) > L.service_of(user) then", "if false then",
        partial(properties.equals_are_served_alike, alone_first=30),
    ),
    "(15) a big one reserves at its bound": (
        "if L.at_bound(e) then L.reserve(e, m.reason, reserved) end", "",
        properties.a_big_one_starts_in_time,
    ),
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


def stories_break(url: str, script: bytes, story: Story) -> str:
    """Return the rule found broken, "" when the stories found none."""
    for seed in range(MOST_STORIES):
        store = LuaStore(url, script)
        store.client.flushdb()
        try:
            story(Court([store]), seed)
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


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_rule_of_a_story_switched_off_is_found(redis_url: str, name: str) -> None:
    """
    The stories of the properties find each rule that is taken out of the script.
    """
    line, instead, story = STORIES[name]
    script = SCRIPT.decode()
    assert script.count(line) == 1, "the line to take out is no longer there"

    assert stories_break(redis_url, script.replace(line, instead).encode(), story)
