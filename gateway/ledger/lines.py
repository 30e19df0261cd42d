"""How operations and results are written for the script: lines of text, readable in MONITOR.

Fields are parted by tabs; nothing that may hold a tab ever becomes a field. An entry is a header
(what changes while it lives), a carriage return, and its ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from gateway.core.types import Charge, Outcome, QuotaState, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.state import BATCH, INTERACTIVE, Entry

Line = tuple[str, str, str | bytes]  # verb, name, the rest

LETTER = {INTERACTIVE: "i", BATCH: "b"}
CLASS = {letter: service_class for service_class, letter in LETTER.items()}


def _opt(value: int | None) -> str:
    return "" if value is None else str(value)


def _number(text: str) -> int | None:
    return int(text) if text else None


@lru_cache(maxsize=4096)
def _clean(text: str) -> str:
    """Return the text without the marks that part fields; names people gave may hold anything."""
    return text.translate(_MARKS)


_MARKS = str.maketrans({"\t": " ", "\r": " ", "\n": " ", "\x1e": " ", "\x1f": " "})


def _charges(charges: tuple[Charge, ...]) -> str:
    return "\x1e".join(
        "\x1f".join(
            (_clean(c.counter), c.window, str(c.amount), str(c.limit), str(c.floor),
             str(c.ends_at_ms), str(int(c.settles)))
        )
        for c in charges
    )  # fmt: skip


def _read_charge(text: str) -> Charge:
    counter, window, amount, limit, floor, ends, settles = text.split("\x1f")
    return Charge(counter, int(limit), int(amount), window, int(ends), int(floor), settles == "1")


def ticket_line(t: Ticket) -> bytes:
    """Write a ticket; the order of fields is `read_ticket` of lua/entries.lua."""
    owner = _owner(t.key_id, t.user_id, t.service_class, t.pool)
    line = (
        f"{owner}{t.weight}\t{t.prefill_tokens}\t{t.output_tokens}\t{t.ttl_ms}\t{t.home_wait_ms}"
        f"\t{_clean(t.session)}\t{','.join(t.replica_order)}\t{_clean(t.place)}\t{t.fingerprint}"
        f"\t{_charges(t.charges) if t.charges else ''}\t"
    ).encode()
    # Behind the record, which holds no raw tab, so that a ticket without a group costs nothing.
    return line + t.interrupted + (b"\t" + _clean(t.group).encode() if t.group else b"")


@lru_cache(maxsize=4096)
def _owner(key_id: str, user_id: str, cls: ServiceClass, pool: str) -> str:
    return f"{_clean(key_id)}\t{_clean(user_id)}\t{LETTER[cls]}\t{_clean(pool)}\t"


def read_ticket(ticket_id: str, line: bytes) -> Ticket:
    """Read what `ticket_line` wrote."""
    f = line.split(b"\t", 14)
    key, user, cls, pool, w, u, o, ttl, wait, session, order, place, body, charges = (
        part.decode() for part in f[:14]
    )
    interrupted, _, group = f[14].partition(b"\t")
    return Ticket(
        ticket_id, key, user, CLASS[cls], pool, int(w), int(u), int(o),
        tuple(order.split(",")) if order else (), session, int(ttl), place, body, int(wait),
        tuple(_read_charge(c) for c in charges.split("\x1e") if c), interrupted, group.decode(),
    )  # fmt: skip


def encode(operation: op.Operation) -> list[Line]:
    """Write an operation; a key's caps for both classes become two lines, a sign of life none."""
    write = _WRITERS.get(type(operation))
    return write(operation) if write is not None else []


_WRITERS: dict[type, Callable[[Any], list[Line]]] = {
    op.Enqueue: lambda o: [("E", o.ticket.ticket_id, ticket_line(o.ticket))],
    op.Cancel: lambda o: [("C", o.ticket_id, "")],
    op.Release: lambda o: [("R", o.ticket_id, _release(o))],
    op.PutBack: lambda o: [("B", o.ticket_id, o.avoid)],
    op.PrefillDone: lambda o: [("P", o.ticket_id, "")],
    op.WriteKey: lambda o: _key(o.policy),
    op.WriteUser: lambda o: [_user(o.policy)],
    op.WritePool: lambda o: [("L", _clean(o.policy.pool), _pool(o.policy))],
    op.WriteReplica: lambda o: [("V", o.policy.replica_id, _replica(o.policy))],
    op.RemoveReplica: lambda o: [("X", o.replica_id, "")],
    op.Observe: lambda o: [("O", o.replica_id, _seen(o))],
    op.Advance: lambda o: [("A", str(o.ms), "")],
    op.Hold: lambda o: [("H", o.ticket.ticket_id, _hold(o))],
    op.Wait: lambda o: [("W", o.ticket.ticket_id, _wait(o))],
    op.Peers: lambda o: [("N", "", "\t".join(o.names))],
    op.Ask: lambda o: [("Q", "", _charges(o.charges))],
    op.Look: lambda _: [("D", "", "")],
}


def _release(release: op.Release) -> bytes:
    used = f"{release.prompt_tokens}\t{release.completion_tokens}\t{release.tokens}"
    return f"{release.outcome}\t{used}\t".encode() + release.record


def _key(policy: KeyPolicy) -> list[Line]:
    line = (
        f"{policy.version}\t{int(policy.live)}\t{policy.in_flight}\t{policy.queued}"
        f"\t{int(policy.in_flight_is_default)}"
    )
    classes = [policy.service_class] if policy.service_class else list(ServiceClass)
    return [("K", f"{LETTER[cls]}\t{_clean(policy.key_id)}", line) for cls in classes]


def _user(policy: UserPolicy) -> Line:
    line = f"{policy.version}\t{_opt(policy.in_flight)}\t{policy.queued}\t{policy.share}"
    return ("U", f"{LETTER[policy.service_class]}\t{_clean(policy.user_id)}", line)


def _pool(policy: PoolPolicy) -> str:
    reserved = ",".join(f"{_clean(group)}:{slots}" for group, slots in policy.reserved)
    return (
        f"{policy.version}\t{_opt(policy.batch_slots)}\t{_opt(policy.batch_slots_idle)}"
        f"\t{policy.batch_idle_after_ms}\t{policy.queue_bound_interactive}"
        f"\t{policy.queue_bound_batch}\t{reserved}"
    )


def read_reserved(text: str) -> tuple[tuple[str, int], ...]:
    """Read the last field of a pool's line."""
    pairs = (part.rpartition(":") for part in text.split(",") if part)
    return tuple((group, int(slots)) for group, _, slots in pairs)


def _replica(policy: ReplicaPolicy) -> str:
    return (
        f"{policy.version}\t{_clean(policy.pool)}\t{policy.slots}\t{policy.prefill_budget}"
        f"\t{_clean(policy.card)}"
    )


def _seen(seen: op.Observe) -> str:
    incarnation = _clean(seen.incarnation)
    return f"{int(seen.accepts)}\t{_opt(seen.slots)}\t{int(seen.affine)}\t{incarnation}"


def _entry(ticket: Ticket, header: Sequence[object]) -> bytes:
    return "\t".join(map(str, header)).encode() + b"\r" + ticket_line(ticket)


def _hold(held: op.Hold) -> bytes:
    # replica seq arrived deadline since started rank charge reading accepted pick_since
    # first_bypass bypassed avoid: the order of HEADER in the script (lua/).
    since = _opt(held.ageing_since_ms)
    return _entry(
        held.ticket,
        (held.replica_id, held.seq, held.arrived_ms, "", since, held.started_ms, "",
         held.charge, int(held.is_reading), 1, "", "", 0, ""),
    )  # fmt: skip


def _wait(wait: op.Wait) -> bytes:
    since = _opt(wait.ageing_since_ms)
    return _entry(
        wait.ticket, ("", wait.seq, wait.arrived_ms, "", since, "", "", 0, 0, 1, "", "", 0, "")
    )


def read_entry(gateway: str, ticket_id: str, line: bytes) -> Entry:
    """Read one entry as the script (lua/) keeps it."""
    header, _, ticket = line.partition(b"\r")
    f = header.decode().split("\t")
    entry = Entry(
        read_ticket(ticket_id, ticket), gateway, int(f[1]), int(f[2]), int(f[3] or 0),
        _number(f[4]),
    )  # fmt: skip
    entry.replica_id = f[0]
    entry.started_ms = int(f[5] or 0)
    entry.rank_ms = int(f[6] or 0)
    entry.charge = int(f[7] or 0)
    entry.reading = int(f[8] or 0)
    entry.is_accepted = f[9] == "1"
    entry.pick_since_ms = _number(f[10])
    entry.first_bypass_ms = _number(f[11])
    entry.bypassed = int(f[12] or 0)
    entry.avoid = f[13]
    return entry


def decode(answer: bytes) -> op.Reply:
    """Read the script's answer."""
    head, _, rest = answer.partition(b"\n")
    if head.startswith(b"ADOPT"):
        _, sequence, now, is_open, stands_at = head.split(b"\t")
        return op.Reply(
            int(sequence), int(now), is_open == b"1", must_adopt=True, stands_at=int(stands_at)
        )
    sequence, now, is_open = head.split(b"\t")
    results = tuple([_result(line) for line in rest.split(b"\n") if line])
    return op.Reply(int(sequence), int(now), is_open == b"1", results)


def _result(line: bytes) -> op.Result:
    if line.startswith(b"D\t"):
        table, field, value = line[2:].split(b"\r", 2)
        return op.Row(table.decode(), field.decode(), value)
    return _READERS[line[:1]](line.decode().split("\t"))


def _started(f: list[str]) -> op.Started:
    return op.Started(
        f[1], f[2], int(f[3]), int(f[4]), int(f[5]) if f[5] else None, int(f[6]), int(f[7]),
        int(f[8]),
    )  # fmt: skip


def _turned(f: list[str]) -> op.Turned:
    outcome = Outcome(f[3]) if f[3] else None
    quota = _quota(f[7]) if f[7] else None
    return op.Turned(f[1], f[2], outcome, _number(f[4]), f[5], _number(f[6]), quota)


_READERS: dict[bytes, Callable[[list[str]], op.Result]] = {
    b"S": _started,
    b"Q": lambda f: op.Queued(f[1], int(f[2]), int(f[3]), _number(f[4])),
    b"T": _turned,
    b"U": lambda f: op.Told(f[1], tuple([_quota(text) for text in f[2].split("\x1e") if text])),
    b"R": lambda f: op.Recorded(f[1], f[2]),
    b"N": lambda f: op.Roster(tuple(f[1:])),
}


def _quota(text: str) -> QuotaState:
    counter, window, used, limit, wait = text.split("\x1f")
    return QuotaState(counter, window, int(used), int(limit), _number(wait))
