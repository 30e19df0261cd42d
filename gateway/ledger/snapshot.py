"""Reads a dump of the Redis ledger into the memory ledger's state, for views and the recount."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gateway.core.placing import Replica
from gateway.core.ranking import BATCH_HANDICAP_MS
from gateway.core.types import ServiceClass
from gateway.ledger import lines
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.state import BATCH, Entry, Flow, FlowId, LedgerState, Owner, Rules

Tables = dict[str, dict[str, bytes]]

#: Where streams must not wait, entries are read in so many parts, of so many at least.
PARTS, LEAST_IN_PART = 32, 16


def tables_of(rows: Iterable[op.Row]) -> Tables:
    """Sort the rows by table."""
    tables: Tables = {}
    for row in rows:
        tables.setdefault(row.table, {})[row.field] = row.value
    return tables


def state_of(rows: Iterable[op.Row], rules: Rules | None = None) -> LedgerState:
    """Return the ledger's state with the counts it keeps (not recounted ones)."""
    state = LedgerState(rules or Rules())
    for _ in _fill(state, rows):
        pass
    return state


async def state_in_parts(rows: Iterable[op.Row]) -> LedgerState:
    """Do as `state_of`, and let the loop go on now and then."""
    state = LedgerState(Rules())
    for _ in _fill(state, rows):
        await asyncio.sleep(0)
    return state


def _fill(state: LedgerState, rows: Iterable[op.Row]) -> Iterator[None]:
    """Read the rows; each part ends with a yield."""
    tables = tables_of(rows)
    meta = tables.get("meta", {})
    state.now_ms, state.seq = int(meta.get("now", b"0")), int(meta.get("seq", b"0"))
    _policies(state, tables.get("cfg", {}))
    _fleet(state, tables.get("fleet", {}))
    state.count_fleet()
    _counts(state, {name: int(n) for name, n in tables.get("c", {}).items()})
    for owner, n in tables.get("v", {}).items():
        state.service[_owner(owner)] = int(n)
    yield
    for table, fields in tables.items():
        if table.startswith("g:"):
            part = max(LEAST_IN_PART, len(fields) // PARTS)
            for number, (ticket_id, line) in enumerate(fields.items(), 1):
                _take(state, lines.read_entry(table[2:], ticket_id, line))
                if number % part == 0:
                    yield


def homes_of(rows: Iterable[op.Row]) -> dict[str, str]:
    """Return the replica to which the session of each queued ticket is bound."""
    return {session: name.decode() for session, name in tables_of(rows).get("home", {}).items()}


def _owner(text: str) -> Owner:
    letter, _, name = text.partition("\t")
    return (lines.CLASS[letter], name)


def _kind(text: str) -> tuple[str, ServiceClass]:
    pool, _, letter = text.rpartition("\t")
    return (pool, lines.CLASS[letter])


def _flow(text: str) -> FlowId:
    pool, letter, user = text.split("\t")
    return (pool, lines.CLASS[letter], user)


def _take(state: LedgerState, entry: Entry) -> None:
    state.entries[entry.ticket.ticket_id] = entry
    if not entry.replica_id:
        flow = state.flows.setdefault(entry.flow, Flow())
        queue = flow.queues.setdefault(entry.ticket.key_id, [])
        queue.append(entry)
        queue.sort(key=lambda e: e.seq)


def _policies(state: LedgerState, config: dict[str, bytes]) -> None:
    for name, line in config.items():
        kind, _, rest = name.partition("\t")
        owner, f = _owner(rest), line.decode().split("\t")
        if kind == "k":
            state.keys[owner] = KeyPolicy(
                owner[1], int(f[0]), f[1] == "1", int(f[2]), int(f[3]), f[4] == "1", owner[0]
            )
        else:
            cap = int(f[1]) if f[1] else None
            state.users[owner] = UserPolicy(
                owner[1], owner[0], int(f[0]), cap, int(f[2]), int(f[3])
            )


def _fleet(state: LedgerState, fleet: dict[str, bytes]) -> None:
    seen: list[tuple[str, list[str]]] = []
    for name, line in fleet.items():
        kind, _, rest = name.partition("\t")
        f = line.decode().split("\t")
        if kind == "p":
            busy, idle = (int(n) if n else None for n in f[1:3])
            state.pools[rest] = PoolPolicy(
                rest, int(f[0]), busy, idle, int(f[3]), int(f[4]), int(f[5]),
                lines.read_reserved(f[6]) if len(f) > 6 else (),
            )  # fmt: skip
        elif kind == "r":
            policy = ReplicaPolicy(rest, int(f[0]), f[1], int(f[2]), int(f[3]), f[4])
            state.replica_policies[rest] = policy
            state.replicas[rest] = Replica(
                rest, policy.pool, policy.slots, policy.prefill_budget, policy.slots
            )
        elif kind == "x":
            state.replicas.setdefault(rest, Replica(rest, f[0], 0, 0, 0, accepts=False))
        elif kind == "o":
            seen.append((rest.partition("\t")[0], f))
    for replica_id, f in seen:
        replica = state.replicas.get(replica_id)
        if replica is not None:
            replica.accepts = replica.accepts and f[0] == "1"
            replica.affine = replica.affine and f[2] == "1"
            replica.slots_now = min(replica.slots_now, int(f[1])) if f[1] else replica.slots_now


def _pair(text: str) -> tuple[str, str]:
    name, _, group = text.partition("\t")
    return (name, group)


def _counts(state: LedgerState, counts: dict[str, int]) -> None:
    kept: dict[str, tuple[Any, Callable[[str], Any]]] = {
        "k": (state.key_in_flight, _owner), "u": (state.user_in_flight, _owner),
        "kq": (state.key_queued, _owner), "uq": (state.user_queued, _owner),
        "ut": (state.user_tickets, _owner), "uc": (state.user_charged, _owner),
        "pq": (state.pool_queued, _kind), "pt": (state.pool_tickets, _kind),
        "gh": (state.group_in_flight, _pair), "gq": (state.group_queued, _pair),
        "b": (state.batch_in_flight, str),
    }  # fmt: skip
    for name, n in counts.items():
        table, _, rest = name.partition(":")
        if table in kept:
            counter, read = kept[table]
            counter[read(rest)] = n
        elif table == "hold":
            state.hold_average[_kind(rest)] = n - 1
        elif table == "avg":
            state.completion_average[_flow(rest)] = n - 1
        elif table == "ce":
            state.chat_ended_ms[rest] = n
        elif table == "down":
            state.down_since_ms[rest] = n
        elif table in ("r", "rp", "rl") and rest in state.replicas:
            replica = state.replicas[rest]
            name_of = {"r": "in_flight", "rp": "prefill", "rl": "long_prompts"}[table]
            setattr(replica, name_of, n)


def wrong_heads(state: LedgerState, rows: Iterable[op.Row]) -> list[str]:
    """Return where the ready flows are not those with a head that has room."""
    kept = {_flow(name): line.decode() for name, line in tables_of(rows).get("h", {}).items()}
    wrong: list[str] = []
    if set(kept) != set(state.flows):
        wrong.append(f"flows {sorted(kept)} are known, {sorted(state.flows)} have something queued")
    for flow_id, flow in state.flows.items():
        head = state.head(flow)
        expected = ""
        if head is not None:
            since = head.ageing_since_ms
            handicap = BATCH_HANDICAP_MS if flow_id[1] is BATCH else 0
            rank = 9_999_999_999_999 if since is None else since + handicap
            expected = f"{rank:013d}{head.seq:015d}\t{head.gateway}\t{head.ticket.ticket_id}"
        if kept.get(flow_id, "") != expected:
            wrong.append(f"flow {flow_id} is led by {kept.get(flow_id)!r}, not {expected!r}")
    return wrong
