"""Holds every count of a ledger against a recount of its entries.

The counts change only together with an entry, so they cannot drift; this says so every minute as
the metric `ledger_mismatch` (which must be 0) and after every step of the tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from gateway.core.placing import LONG_PROMPT
from gateway.ledger.state import BATCH, Entry, LedgerState, Owner

COUNTS = (
    "key_in_flight", "user_in_flight", "batch_in_flight", "key_queued", "user_queued",
    "pool_queued", "pool_tickets", "user_tickets", "user_charged", "group_in_flight",
    "group_queued",
)  # fmt: skip


def mismatches(state: LedgerState) -> list[str]:
    """Return one line for each thing that does not add up; empty when all is well."""
    held = [e for e in state.entries.values() if e.replica_id]
    queued = [e for e in state.entries.values() if not e.replica_id]
    return [
        *_queues(state, queued),
        *_counts(state, held, queued),
        *_replicas(state, held),
        *_service(state, held),
    ]


def _queues(state: LedgerState, queued: list[Entry]) -> Iterable[str]:
    standing = [e for f in state.flows.values() for q in f.queues.values() for e in q]
    if sorted(map(id, standing)) != sorted(map(id, queued)):
        yield "the queues do not hold exactly the queued entries"
    for flow_id, flow in state.flows.items():
        for key_id, queue in flow.queues.items():
            if [e.seq for e in queue] != sorted(e.seq for e in queue):
                yield f"queue of key {key_id} in {flow_id} is out of order"


def _counts(state: LedgerState, held: list[Entry], queued: list[Entry]) -> Iterable[str]:
    true: dict[str, Counter[object]] = defaultdict(Counter)
    for e in held:
        true["key_in_flight"][e.key] += e.ticket.weight
        true["user_in_flight"][e.user] += e.ticket.weight
        true["user_charged"][e.user] += e.charge
        if e.ticket.service_class is BATCH:
            true["batch_in_flight"][e.ticket.pool] += e.ticket.weight
        if e.ticket.group:
            true["group_in_flight"][(e.replica_id, e.ticket.group)] += e.ticket.weight
    for e in queued:
        true["key_queued"][e.key] += 1
        true["user_queued"][e.user] += 1
        true["pool_queued"][(e.ticket.pool, e.ticket.service_class)] += 1
        if e.ticket.group:
            true["group_queued"][(e.ticket.pool, e.ticket.group)] += 1
    for e in [*held, *queued]:
        true["user_tickets"][e.user] += 1
        true["pool_tickets"][(e.ticket.pool, e.ticket.service_class)] += 1
    for name in COUNTS:
        kept = {k: n for k, n in getattr(state, name).items() if n}
        counted = {k: n for k, n in true[name].items() if n}
        if kept != counted:
            yield f"{name} is {kept}, a recount says {counted}"


def _replicas(state: LedgerState, held: list[Entry]) -> Iterable[str]:
    for replica in state.replicas.values():
        here = [e for e in held if e.replica_id == replica.replica_id]
        reading = [e for e in here if e.reading]
        kept = (replica.in_flight, replica.prefill, replica.long_prompts)
        true = (
            sum(e.ticket.weight for e in here),
            sum(e.reading for e in reading),
            sum(e.ticket.prefill_tokens >= LONG_PROMPT for e in reading),
        )
        if kept != true:
            yield f"replica {replica.replica_id} counts {kept}, a recount says {true}"


def _service(state: LedgerState, held: list[Entry]) -> Iterable[str]:
    charged: Counter[Owner] = Counter()
    for e in held:
        charged[e.user] += e.charge
    for user, charge in charged.items():
        if not 0 <= charge <= state.service.get(user, 0):
            yield f"service of {user} is below the {charge} charged for what runs"
