"""Planted violations for the properties that a test of their own holds, not a random history.

Each row takes one line out of the script and names the test of `test_properties.py`, or the
recount, that must then turn red.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from gateway.ledger.script import SCRIPT
from tests.gateway.ledger import properties, test_properties
from tests.gateway.ledger.books import hold
from tests.gateway.ledger.properties import Court
from tests.gateway.ledger.stores import LuaStore
from tests.gateway.ledger.world import History, Sizes

Judge = Callable[[LuaStore], None]
MOST_HISTORIES = 20


def recounted(store: LuaStore) -> None:
    """(9) Hold every count against a recount in the midst of random histories."""
    for seed in range(MOST_HISTORIES):
        store.client.flushdb()
        history = History([store], random.Random(seed), Sizes(caps_change=False))
        history.play(20)
        hold(not store.mismatches(), "a count is not what a recount says (9)")


def tie(store: LuaStore) -> None:
    properties.batch_wins_the_tie(Court([store]), 1)


death = test_properties.test_a_dead_process_is_gone_in_time_from_every_step
twice = test_properties.test_a_second_ending_and_an_unknown_one_change_nothing
silent = test_properties.test_a_silent_stream_keeps_its_lease
leaving = test_properties.test_a_client_leaving_in_any_state_frees_one_lease

#: Property: line, instead, who must notice.
PLANTED: dict[str, tuple[str, str, Judge]] = {
    "(3) a millisecond more than ten minutes": ("HANDICAP = 600000,", "HANDICAP = 600001,", tie),
    "(3) a millisecond less": ("HANDICAP = 600000,", "HANDICAP = 599999,", tie),
    "(3) the younger wins the tie": (
        "if x ~= y then return x < y end\n  return a.seq", "if x ~= y then return x > y end\n"
        "  return a.seq", tie,
    ),
    "(9) what waits is not counted": ("  L.add(e.n_pq, n)\n", "", recounted),
    "(9) reading is not given back": (
        "    L.add('rp:' .. e.replica, -e.reading)\n", "", recounted,
    ),
    "(9) charges are not kept apart": ("  L.add('uc:' .. owner_user, charged)\n", "", recounted),
    "(18) a silent process keeps its queue": ("      L.silence(name)\n", "", death),
    "(18) an unread grant is not undone": (
        "if e.replica == '' or e.accepted == 0 then", "if e.replica == '' then", death,
    ),
    "(18) the dead keep their slots": (
        "      L.reap(name)\n      heard[name] = nil\n", "      L.silence(name)\n", death,
    ),
    "(19) a cancel ends what runs": (
        "if e and (e.replica == '') == queued then return e end", "if e then return e end", twice,
    ),
    "(20) the time to wait ends what runs": (
        "  call('ZREM', e.queue, e.member)\n"
        "  call('ZREM', K.DEADLINES, L.padded(e.seq) .. '\\t' .. e.ref)\n",
        "  call('ZREM', e.queue, e.member)\n", silent,
    ),
    "(21) who leaves the queue stays in it": (
        "if e then L.drop_queued(e) end", "", partial(leaving, state="queued"),
    ),
    "(21) who leaves unread frees nothing": (
        "  L.count_held(e, -e.w)\n", "", partial(leaving, state="granted unread"),
    ),
    "(21) who leaves while it runs frees nothing": (
        "  L.unhold(e)\n  L.leave(e)\n  if f[5]", "  L.leave(e)\n  if f[5]",
        partial(leaving, state="running"),
    ),
    "(21) what is put back stays charged": (
        "  L.serve(e.owner_user, -e.charge, -e.charge)\n  e.charge = 0\n", "  e.charge = 0\n",
        partial(leaving, state="put back"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_rule_switched_off_turns_its_test_red(redis_url: str, name: str) -> None:
    """
    The test of each property finds the rule that is taken out of the script, and only that.
    """
    line, instead, judge = PLANTED[name]
    script = SCRIPT.decode()
    assert script.count(line) == 1, "the line to take out is no longer there"

    with pytest.raises(AssertionError):
        judge(LuaStore(redis_url, script.replace(line, instead).encode()))
