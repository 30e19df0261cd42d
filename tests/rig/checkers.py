"""The invariants, as pure functions on what clients, engine and books have recorded.

Each returns the violations it found, in plain words; an empty list means the invariant held.
`tests/rig/test_checkers.py` plants a violation of each, because a checker that has never
complained proves nothing. Names I1 … are those of the list in tests/faults/README.md.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.rig.chat import Call
from tests.rig.witness import Record, peak

KEEP_ALIVE = re.compile(rb"\A(?::[^\n]*\n\n)+")
WRITTEN_AFTER_S = 15.0  # the books may be this far behind while PostgreSQL comes back
DOCUMENTED = {200, 400, 401, 403, 404, 408, 413, 429, 502, 503, 504}


@dataclass(frozen=True)
class UsageRow:
    """One row of the usage table, as far as the checkers care."""

    request_id: str
    mark: str
    outcome: str
    prompt_tokens: int
    completion_tokens: int
    estimated: bool


def span(record: Record) -> str:
    """Return when a request was at the engine, for a reader who compares it with the faults."""
    ended = "still there" if record.ended_s is None else f"{record.ended_s:.2f}"
    return f"({record.outcome}, {record.arrived_s:.2f} to {ended})"


def caps_held(records: Sequence[Record], caps: Mapping[str, int]) -> list[str]:
    """I2: no owner had more requests at the engine at any instant than its cap."""
    by_owner: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_owner[record.owner].append(record)
    return [
        f"{owner} had {most} requests at the engine at once, its cap is {caps[owner]}"
        for owner, mine in by_owner.items()
        if owner in caps and (most := peak(mine)) > caps[owner]
    ]


def slots_held(records: Sequence[Record], slots: int) -> list[str]:
    """I3: the engine never had more requests than slots, so none waited inside it."""
    most = peak(records)
    return [f"the engine had {most} requests at once and {slots} slots"] if most > slots else []


def all_ended(calls: Iterable[Call], *, may_break: bool) -> list[str]:
    """I5: every call ended whole, or in a documented error, or cut where a process was killed."""
    found = []
    for call in calls:
        if call.broke == "left" or call.whole:
            continue
        if call.status == 0 or call.broke:
            if not may_break:
                found.append(f"{call.mark}: the connection broke ({call.broke})")
        elif call.status not in DOCUMENTED:
            found.append(
                f"{call.mark}: status {call.status} is not documented: {call.body[:200]!r}"
            )
        elif not call.code:
            found.append(f"{call.mark}: status {call.status} without an error in the known shape")
        elif call.status in (429, 503) and int(call.headers.get("retry-after", 0)) < 1:
            found.append(f"{call.mark}: {call.status} does not say when to come back")
    return found


def bytes_true(calls: Iterable[Call], records: Sequence[Record]) -> list[str]:
    """I6: what a client got whole is what the engine sent for it, byte for byte.

    Comments that kept the line alive while the request was still queued come from the gateway.
    """
    sent = {record.mark: record for record in records if record.outcome == "done"}
    return [
        f"{call.mark}: the client's bytes differ from the engine's: {call.body[:300]!r}"
        for call in calls
        if call.whole and call.mark in sent
        and hashlib.sha256(KEEP_ALIVE.sub(b"", call.body)).hexdigest() != sent[call.mark].sha256
    ]  # fmt: skip


def nobody_elses(calls: Iterable[Call]) -> list[str]:
    """I7: an answer carries its own mark; the engine repeats it as the first word."""
    return [
        f"{call.mark} got the answer of {call.text.split()[0]}"
        for call in calls
        if call.whole and call.text and call.text.split()[0] != call.mark
    ]


def copies_lost(
    record: Record, gateways_killed_s: Sequence[float], redis_lost_s: Sequence[float]
) -> bool:
    """Answer whether both copies of a usage record may be gone before the books had it.

    Until then it lives in its gateway's memory and in Redis. One of them may be lost; who loses
    both within seconds loses the row, and that is said in docs/operations.md.
    """
    end_s = (record.arrived_s if record.ended_s is None else record.ended_s) + WRITTEN_AFTER_S
    return all(
        any(record.arrived_s <= at_s <= end_s for at_s in losses)
        for losses in (gateways_killed_s, redis_lost_s)
    )


def usage_true(rows: Sequence[UsageRow], records: Sequence[Record]) -> list[str]:
    """I8: one row a request; whole answers exact, broken ones at most what was generated."""
    found = [
        f"{request_id} has {count} usage rows"
        for request_id, count in Counter(row.request_id for row in rows).items()
        if count > 1
    ]
    tries: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        tries[record.mark].append(record)
    for mark, mine in tries.items():
        written = [row for row in rows if row.mark == mark]
        if not written:
            found.append(f"{mark} was at the engine and has no usage row {span(mine[-1])}")
        elif all(record.ended_s is not None for record in mine):
            found += _count_true(mark, written, mine)
        # Else the engine itself was killed, and what it had made is not known.
    return found


def _count_true(mark: str, rows: Sequence[UsageRow], tries: Sequence[Record]) -> list[str]:
    """Hold the rows of one request against its tries: one that was refused made nothing."""
    counted = sum(row.completion_tokens for row in rows)
    whole = {record.tokens for record in tries if record.outcome == "done" and record.tokens}
    made = max(record.tokens for record in tries)
    if whole and not any(row.estimated for row in rows):
        return [] if counted in whole else [f"{mark}: {counted} tokens counted, {whole} made"]
    return [] if counted <= made else [f"{mark}: {counted} tokens counted, only {made} made"]


def order_kept(records: Sequence[Record], ranks: Mapping[str, float]) -> list[str]:
    """I4: of two marks with ranks, the smaller one's request reached the engine first."""
    started = [record for record in records if record.mark in ranks]
    started.sort(key=lambda record: record.arrived_s)
    return [
        f"{later.mark} (rank {ranks[later.mark]:g}) started after "
        f"{earlier.mark} (rank {ranks[earlier.mark]:g})"
        for earlier, later in pairwise(started)
        if ranks[later.mark] < ranks[earlier.mark]
    ]


def refused_after(records: Iterable[Record], owner: str, revoked_s: float) -> list[str]:
    """I11: nothing of a revoked key starts at the engine five seconds after its end."""
    return [
        f"{record.mark} started {record.arrived_s - revoked_s:.1f} s after the key was revoked"
        for record in records
        if record.owner == owner and record.arrived_s > revoked_s + 5.0
    ]


def lines_once(given: Sequence[str], output: Sequence[str], errors: Sequence[str]) -> list[str]:
    """I10: each line of a batch is in its output or its error file, once."""
    seen = Counter([*output, *errors])
    missing = [f"{name} is in neither file" for name in given if not seen[name]]
    twice = [f"{name} is there {count} times" for name, count in seen.items() if count > 1]
    foreign = [f"{name} was never sent" for name in seen if name not in set(given)]
    return missing + twice + foreign


def secret_free(secret: str, texts: Mapping[str, str]) -> list[str]:
    """I12: no part of a secret longer than the four characters people see is anywhere."""
    body = secret[7:-4]
    return [f"{where} holds the secret" for where, text in texts.items() if body[-12:] in text]


def no_traces(output: str) -> list[str]:
    """I15: our own programs explain what goes wrong in a line; none prints a stack trace."""
    ours = ("gateway", "portal", "usage", "up ")
    return [
        f"a stack trace of {line.partition('|')[0].strip()}"
        for line in output.splitlines()
        if "Traceback (most recent call last)" in line and line.startswith(ours)
    ]
