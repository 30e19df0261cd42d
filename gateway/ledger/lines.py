"""How operations and results are written for step.lua: short lines of text, readable in MONITOR.

Fields are parted by tabs; nothing that may hold a tab ever becomes a field. An entry is a header
(what changes while it lives), a carriage return, and its ticket.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def _clean(text: str) -> str:
    """Return the text without the marks that part fields; names people gave may hold anything."""
    return text.translate(_MARKS) if not text.isalnum() else text


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
    """Write a ticket; the order of fields is `read_ticket` of step.lua."""
    line = "\t".join(
        (
            _clean(t.key_id), _clean(t.user_id), LETTER[t.service_class], _clean(t.pool),
            str(t.weight), str(t.prefill_tokens), str(t.output_tokens), str(t.ttl_ms),
            str(t.home_wait_ms), _clean(t.session), ",".join(t.replica_order), _clean(t.place),
            t.fingerprint, _charges(t.charges), "",
        )
    )  # fmt: skip
    # Behind the record, which holds no raw tab, so that a ticket without a group costs nothing.
    return line.encode() + t.interrupted + (b"\t" + _clean(t.group).encode() if t.group else b"")


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


def encode(operation: op.Operation) -> list[Line]:  # noqa: C901  (a flat table of verbs)
    """Write an operation; a key's caps for both classes become two."""
    match operation:
        case op.Enqueue(ticket):
            return [("E", ticket.ticket_id, ticket_line(ticket))]
        case op.Cancel(ticket_id):
            return [("C", ticket_id, "")]
        case op.Release():
            return [("R", operation.ticket_id, _release(operation))]
        case op.PutBack(ticket_id, avoid):
            return [("B", ticket_id, avoid)]
        case op.PrefillDone(ticket_id):
            return [("P", ticket_id, "")]
        case op.WriteKey(policy):
            return _key(policy)
        case op.WriteUser(policy):
            return [_user(policy)]
        case op.WritePool(policy):
            return [("L", _clean(policy.pool), _pool(policy))]
        case op.WriteReplica(policy):
            return [("V", policy.replica_id, _replica(policy))]
        case op.RemoveReplica(replica_id):
            return [("X", replica_id, "")]
        case op.Observe():
            return [("O", operation.replica_id, _seen(operation))]
        case op.Advance(ms):
            return [("A", str(ms), "")]
        case op.Hold():
            return [("H", operation.ticket.ticket_id, _hold(operation))]
        case op.Wait():
            return [("W", operation.ticket.ticket_id, _wait(operation))]
        case op.Ask(charges):
            return [("Q", "", _charges(charges))]
        case op.Look():
            return [("D", "", "")]
        case op.Beat():
            return []


def _release(release: op.Release) -> bytes:
    counts = (release.prompt_tokens, release.completion_tokens, release.tokens)
    head = "\t".join((release.outcome, *map(str, counts), ""))
    return head.encode() + release.record


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
    # first_bypass bypassed avoid: the order of HEADER in step.lua.
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
    """Read one entry as step.lua keeps it."""
    header, _, ticket = line.partition(b"\r")
    f = header.decode().split("\t")
    return Entry(
        ticket=read_ticket(ticket_id, ticket),
        gateway=gateway,
        replica_id=f[0],
        seq=int(f[1]),
        arrived_ms=int(f[2]),
        deadline_ms=int(f[3] or 0),
        ageing_since_ms=_number(f[4]),
        started_ms=int(f[5] or 0),
        rank_ms=int(f[6] or 0),
        charge=int(f[7] or 0),
        reading=int(f[8] or 0),
        is_accepted=f[9] == "1",
        pick_since_ms=_number(f[10]),
        first_bypass_ms=_number(f[11]),
        bypassed=int(f[12] or 0),
        avoid=f[13],
    )


def decode(answer: bytes) -> op.Reply:
    """Read the script's answer."""
    head, _, rest = answer.partition(b"\n")
    if head.startswith(b"ADOPT"):
        _, sequence, now, is_open, stands_at = head.split(b"\t")
        return op.Reply(
            int(sequence), int(now), is_open == b"1", must_adopt=True, stands_at=int(stands_at)
        )
    sequence, now, is_open = head.split(b"\t")
    results = tuple(_result(line) for line in rest.split(b"\n") if line)
    return op.Reply(int(sequence), int(now), is_open == b"1", results)


def _result(line: bytes) -> op.Result:
    if line.startswith(b"D\t"):
        table, field, value = line[2:].split(b"\r", 2)
        return op.Row(table.decode(), field.decode(), value)
    kind, *f = line.decode().split("\t")
    if kind == "S":
        return op.Started(
            f[0], f[1], int(f[2]), int(f[3]), _number(f[4]), int(f[5]), int(f[6]), int(f[7])
        )
    if kind == "Q":
        return op.Queued(f[0], int(f[1]), int(f[2]), _number(f[3]))
    if kind == "T":
        outcome = Outcome(f[2]) if f[2] else None
        quota = _quota(f[6]) if f[6] else None
        return op.Turned(f[0], f[1], outcome, _number(f[3]), f[4], _number(f[5]), quota)
    if kind == "U":
        return op.Told(tuple(_quota(text) for text in f[0].split("\x1e") if text))
    return op.Recorded(f[0], f[1])


def _quota(text: str) -> QuotaState:
    counter, window, used, limit, wait = text.split("\x1f")
    return QuotaState(counter, window, int(used), int(limit), _number(wait))
