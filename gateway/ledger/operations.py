"""What gateways tell a ledger, and what it answers: the same words for every ledger.

A gateway process sends a `Call` of operations in order and gets one `Reply`. Each operation is
checked before it changes anything and answers for itself. Results belong to the process that owns
the ticket; those caused by somebody else's call wait in its inbox until it calls again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.types import Charge, Outcome, QuotaState, Ticket
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy


class Enqueue(NamedTuple):
    """A ticket arrives; it starts, waits or is refused."""

    ticket: Ticket


class Cancel(NamedTuple):
    """A ticket leaves the queue unserved; no effect on one that is not queued."""

    ticket_id: str
    outcome: Outcome = Outcome.EVICTED_CLIENT_GONE


class Release(NamedTuple):
    """A lease ends: slots free, service settled, the usage record appended."""

    ticket_id: str
    outcome: Outcome = Outcome.SERVED
    prompt_tokens: int = 0  # without cached ones
    completion_tokens: int = 0
    tokens: int = 0  # all of prompt and answer: what counts against limits
    record: bytes = b""


class PutBack(NamedTuple):
    """A grant the engine would not take: back to its old place in the queue."""

    ticket_id: str
    avoid: str = ""


class PrefillDone(NamedTuple):
    """The prompt has been read: its prefill budget is free again."""

    ticket_id: str


@dataclass(frozen=True, slots=True)
class WriteKey:
    policy: KeyPolicy


@dataclass(frozen=True, slots=True)
class WriteUser:
    policy: UserPolicy


@dataclass(frozen=True, slots=True)
class WritePool:
    policy: PoolPolicy


@dataclass(frozen=True, slots=True)
class WriteReplica:
    policy: ReplicaPolicy


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    replica_id: str


@dataclass(frozen=True, slots=True)
class Observe:
    """A replica as the calling process sees it."""

    replica_id: str
    accepts: bool
    slots: int | None = None
    incarnation: str = ""
    affine: bool = True


@dataclass(frozen=True, slots=True)
class Beat:
    """Nothing new: time passes, and this process lives."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Move ledger time; only a ledger made with the test switch obeys."""

    ms: int


class Hold(NamedTuple):
    """Part of an adoption: a lease this process holds, whatever the ledger remembers."""

    ticket: Ticket
    replica_id: str
    seq: int
    arrived_ms: int
    ageing_since_ms: int | None
    started_ms: int
    charge: int
    is_reading: bool  # its prefill budget is still taken


class Wait(NamedTuple):
    """Part of an adoption: a ticket that waits here, with the place it had."""

    ticket: Ticket
    seq: int
    arrived_ms: int
    ageing_since_ms: int | None


class Peers(NamedTuple):
    """Part of an adoption: the processes this one knows of, which may hold leases as well."""

    names: tuple[str, ...]


class Ask(NamedTuple):
    """Ask where counted limits stand."""

    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """Ask for everything the ledger holds, as it stands at this point of the call."""


Operation = (
    Enqueue
    | Cancel
    | Release
    | PutBack
    | PrefillDone
    | WriteKey
    | WriteUser
    | WritePool
    | WriteReplica
    | RemoveReplica
    | Observe
    | Beat
    | Advance
    | Hold
    | Wait
    | Peers
    | Ask
    | Look
)


class Started(NamedTuple):
    """The ticket holds its slots; `charge` is the service taken in advance."""

    ticket_id: str
    replica_id: str
    seq: int
    arrived_ms: int
    ageing_since_ms: int | None
    rank_ms: int
    started_ms: int
    charge: int


class Queued(NamedTuple):
    """The ticket waits; sent again when it begins to age."""

    ticket_id: str
    seq: int
    arrived_ms: int
    ageing_since_ms: int | None


class Turned(NamedTuple):
    """The ticket was turned away at the door (no outcome) or left the queue unserved."""

    ticket_id: str
    code: str
    outcome: Outcome | None = None
    retry_after_ms: int | None = None
    place: str = ""
    limit: int | None = None
    quota: QuotaState | None = None


class Told(NamedTuple):
    """Where counted limits stand: those of a new ticket, or without one those of an `Ask`.

    A ticket's come before what became of it, and count it if it was taken.
    """

    ticket_id: str
    states: tuple[QuotaState, ...]


class Roster(NamedTuple):
    """The processes at work, told when one joins or is reaped."""

    names: tuple[str, ...]


class Recorded(NamedTuple):
    """The usage record of a release stands in the stream under this id."""

    ticket_id: str
    stream_id: str


class Row(NamedTuple):
    """One field of one table of the ledger, answering `Look`."""

    table: str
    field: str
    value: bytes


Result = Started | Queued | Turned | Recorded | Told | Roster | Row


class Call(NamedTuple):
    """One step of one gateway process."""

    gateway: str
    previous: int  # sequence of its last call that was answered
    sequence: int
    operations: tuple[Operation, ...] = ()
    adopts: bool = False  # drop what you had of me, the operations say what is true


class Reply(NamedTuple):
    """What a call did. `must_adopt` means it did nothing, the ledger standing at `stands_at`."""

    sequence: int  # of the call it answers
    now_ms: int
    open: bool
    results: tuple[Result, ...] = ()
    must_adopt: bool = False
    stands_at: int = 0
