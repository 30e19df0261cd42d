"""Two dozen protections, each one line that can be taken out; and the test that misses it.

A fault test that cannot fail proves nothing. `tests/faults/test_protections.py` takes out one line
at a time in a copy of the checkout and sees the named test turn red.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.rig.seeding import CACHE, ROOT

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".cache", ".*_cache", ".hypothesis", "__pycache__", "var"
)
FAULTS = "tests/faults/test_"
LONGEST_S = 300
OURS = ("DATA_DIR", "DATABASE_URL", "REDIS_URL")  # what tests/conftest.py has announced


@dataclass(frozen=True)
class Protection:
    """One line of the product, what to put in its place, and who must notice."""

    path: str
    line: str
    instead: str
    test: str

    def is_there(self) -> bool:
        """Answer whether the line stands in its file exactly once."""
        return (ROOT / self.path).read_text().count(self.line) == 1

    def off_in(self, folder: Path) -> None:
        """Take it out of a copy."""
        path = folder / self.path
        path.write_text(path.read_text().replace(self.line, self.instead))


LUA, DEATH = "gateway/ledger/lua/", FAULTS + "gateway_death.py::test_a_"
WIRE, SIMULATED = "tests/gateway/wire/test_", "tests/gateway/ledger/test_simulation.py::test_"
PROTECTIONS = {
    "a silent process is reaped": Protection(
        LUA + "time.lua", "      L.reap(name)\n      heard[name] = nil\n",
        "      L.silence(name)\n", DEATH + "killed_gateway_leaves_nothing_behind[0]",
    ),
    "a silent process leaves the queue": Protection(
        LUA + "time.lua", "      L.silence(name)\n", "",
        DEATH + "killed_gateway_leaves_nothing_behind[0]",
    ),
    "a grant that is never read goes to the next": Protection(
        LUA + "time.lua", "if e.replica == '' or e.accepted == 0 then", "if e.replica == '' then",
        DEATH + "killed_gateway_leaves_nothing_behind[0]",
    ),
    "the dead leave a record of what they ran": Protection(
        LUA + "time.lua",
        "    if e.interrupted ~= '' then L.append_usage(L.on_replica(e.interrupted, "
        "e.replica)) end\n",
        "", DEATH + "killed_gateway_leaves_nothing_behind[0]",
    ),
    "who returns says what it holds": Protection(
        "gateway/ledger/batch.py", "            *leases,\n", "",
        DEATH + "frozen_gateway_takes_its_streams_back[0]",
    ),
    "a ledger without memory stays closed": Protection(
        LUA + "step.lua", "opens = alone and now or now + K.LIMIT", "opens = now",
        "tests/gateway/ledger/test_reopening.py",
    ),
    "a key and its owner have a cap": Protection(
        LUA + "flows.lua", "or key[2] ~= '1' then return false end\n",
        "or key[2] ~= '1' then return false end\n  if true then return true end\n",
        FAULTS + "many_gateways.py::test_a_cap_holds_over_all_gateways[0]",
    ),
    "an engine has so many slots": Protection(
        LUA + "policies.lua", "now = tonumber(f[5]), accepts", "now = tonumber(f[5]) + 1, accepts",
        FAULTS + "redis_lost.py::test_no_slot_is_given_twice_when_redis_forgets_who_runs"
        "[flushed-0]",
    ),
    "ledger time moves by a second at most": Protection(
        LUA + "call.lua", "LONGEST_STEP = 1000", "LONGEST_STEP = 99999999",
        "tests/gateway/ledger/test_clock.py",
    ),
    "batch steps aside for chat": Protection(
        LUA + "policies.lua", "if L.get(p.chat.pt) > 0 then return false end",
        "if true then return true end",
        FAULTS + "many_gateways.py::test_batch_steps_aside_for_chat_and_takes_what_is_idle[0]",
    ),
    "what ends is started again": Protection(
        "portal/supervisor.py", "            delay_s = next_delay(", "            return\n"
        "            delay_s = next_delay(", FAULTS + "kills.py::"
        "test_a_killed_child_is_back_and_the_others_never_restarted[worker]",
    ),
    "a client that leaves is heard": Protection(
        "gateway/client.py", "        if self.on_left is not None:\n            self.on_left()\n",
        "", FAULTS + "slots.py::test_a_client_that_leaves_frees_its_slot",
    ),
    "busy is not broken": Protection(
        "gateway/retry.py", "BUSY = (429, 503)", "BUSY = ()",
        FAULTS + "engines.py::test_busy_is_not_dead",
    ),
    "what two could read differently is refused": Protection(
        "gateway/inbound.py", "if is_ambiguous(self._target, self._headers, version):",
        "if False:",
        WIRE + "http.py::test_an_ambiguous_request_is_refused_and_nothing_after_it_is_read",
    ),
    "a usage row is written once": Protection(
        "quotas/services/usage.py", "ON CONFLICT (request_id, arrived_at) DO NOTHING", "",
        "tests/quotas/test_writer_killed.py",
    ),
    # Properties of docs/scheduler.md that neither a history nor a story of the ledger holds.
    "(12) who had least goes first": Protection(
        "gateway/core/ranking.py", "return (self.service, self.order(", "return (0, self.order(",
        SIMULATED + "one_persons_backlog_hardly_touches_the_others",
    ),
    "(13) batch stands behind chat": Protection(
        "gateway/core/ranking.py", "BATCH_HANDICAP_MS = 600_000", "BATCH_HANDICAP_MS = 0",
        SIMULATED + "a_thousand_batch_lines_hardly_touch_those_who_chat[1]",
    ),
    "(22) who is missing is waited for": Protection(
        LUA + "registry.lua", "    call('HSETNX', K.AWAITED, name, '1')\n", "",
        "tests/gateway/ledger/test_reopening.py::"
        "test_one_that_is_missed_keeps_it_closed_for_the_limit",
    ),
    "(28) what a client may not set is dropped": Protection(
        "gateway/core/fields.py", "allowed = (ALLOWED[kind] | extra) - NEVER_FROM_CLIENTS",
        "allowed = ALLOWED[kind] | extra | NEVER_FROM_CLIENTS",
        WIRE + "fields.py::test_what_decides_about_others_is_ours_alone",
    ),
    "(28) headers that nobody listed are dropped": Protection(
        "gateway/core/headers.py", "for name, value in headers if name in TO_ENGINE]",
        "for name, value in headers]", WIRE + "headers.py::test_an_engine_sees_nothing_that_is"
        "_not_listed",
    ),
    "(29) a broken number is unknown": Protection(
        "gateway/engines/exposition.py",
        "return sum(values) if all(math.isfinite(v) and v >= 0 for v in values) else None",
        "return sum(v for v in values if math.isfinite(v) and v >= 0)",
        "tests/gateway/fleet/test_engines.py::test_a_broken_number_is_unknown",
    ),
    "(30) a reader who takes nothing is cut": Protection(
        "gateway/request.py", "client.full_since_s) is not None and now",
        "None) is not None and now",
        WIRE + "ending.py::test_slow_readers_hold_no_slot_and_no_memory",
    ),
    "(31) a setting that cannot work is refused": Protection(
        "gateway/config.py", "if self.ttl_batch_s <= AGE_HANDICAP_S:", "if False:",
        "tests/gateway/ledger/test_settings.py",
    ),
    "(31) one slot is left for a chat": Protection(
        "gateway/core/sharing.py", "return min(wanted, slots_total - 1) if slots_total > 1 else",
        "return wanted if slots_total > 1 else", "tests/gateway/ledger/test_settings.py",
    ),
}  # fmt: skip


def run_without(protection: Protection, folder: Path) -> tuple[int, str]:
    """Run its test in a copy that lacks it; returns pytest's code and what it printed."""
    copy = folder / "fairway"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    (copy / "tests" / ".cache").symlink_to(CACHE)
    protection.off_in(copy)
    # Stores of its own: a test that cannot reach ours would be red for the wrong reason.
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not long", protection.test],
        cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST_S,
    )  # fmt: skip
    return done.returncode, done.stdout[-3000:]
