"""What gateways tell a ledger, and what it answers: the same words for every ledger.

A gateway process sends a `Call` of operations in order and gets one `Reply`. Each operation is
checked before it changes anything and answers for itself. Results belong to the process that owns
the ticket; those caused by somebody else's call wait in its inbox until it calls again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.core.types import Charge, Outcome, QuotaState, Ticket
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy


class Enqueue:
    """A ticket arrives; it starts, waits or is refused."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self.ticket: Final = ticket


class Cancel:
    """A ticket leaves the queue unserved; no effect on one that is not queued."""

    __slots__ = ("outcome", "ticket_id")

    def __init__(self, ticket_id: str, outcome: Outcome = Outcome.EVICTED_CLIENT_GONE) -> None:
        self.ticket_id: Final = ticket_id
        self.outcome: Final = outcome


class Release:
    """A lease ends: slots free, service settled, the usage record appended."""

    __slots__ = ("completion_tokens", "outcome", "prompt_tokens", "record", "ticket_id", "tokens")

    def __init__(
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.SERVED,
        prompt_tokens: int = 0,  # without cached ones
        completion_tokens: int = 0,
        tokens: int = 0,  # all of prompt and answer: what counts against limits
        record: bytes = b"",
    ) -> None:
        self.ticket_id: Final = ticket_id
        self.outcome: Final = outcome
        self.prompt_tokens: Final = prompt_tokens
        self.completion_tokens: Final = completion_tokens
        self.tokens: Final = tokens
        self.record: Final = record


class PutBack:
    """A grant the engine would not take: back to its old place in the queue."""

    __slots__ = ("avoid", "ticket_id")

    def __init__(self, ticket_id: str, avoid: str = "") -> None:
        self.ticket_id: Final = ticket_id
        self.avoid: Final = avoid


class PrefillDone:
    """The prompt has been read: its prefill budget is free again."""

    __slots__ = ("ticket_id",)

    def __init__(self, ticket_id: str) -> None:
        self.ticket_id: Final = ticket_id


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


class Ask:
    """Ask where counted limits stand."""

    __slots__ = ("charges",)

    def __init__(self, charges: tuple[Charge, ...]) -> None:
        self.charges: Final = charges


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


class Started:
    """The ticket holds its slots; `charge` is the service taken in advance."""

    __slots__ = (
        "ageing_since_ms", "arrived_ms", "charge", "rank_ms", "replica_id", "seq", "started_ms",
        "ticket_id",
    )  # fmt: skip

    def __init__(
        self,
        ticket_id: str,
        replica_id: str,
        seq: int,
        arrived_ms: int,
        ageing_since_ms: int | None,
        rank_ms: int,
        started_ms: int,
        charge: int,
    ) -> None:
        self.ticket_id: Final = ticket_id
        self.replica_id: Final = replica_id
        self.seq: Final = seq
        self.arrived_ms: Final = arrived_ms
        self.ageing_since_ms: Final = ageing_since_ms
        self.rank_ms: Final = rank_ms
        self.started_ms: Final = started_ms
        self.charge: Final = charge


class Queued:
    """The ticket waits; sent again when it begins to age."""

    __slots__ = ("ageing_since_ms", "arrived_ms", "seq", "ticket_id")

    def __init__(
        self,
        ticket_id: str,
        seq: int,
        arrived_ms: int,
        ageing_since_ms: int | None,
    ) -> None:
        self.ticket_id: Final = ticket_id
        self.seq: Final = seq
        self.arrived_ms: Final = arrived_ms
        self.ageing_since_ms: Final = ageing_since_ms


class Turned:
    """The ticket was turned away at the door (no outcome) or left the queue unserved."""

    __slots__ = ("code", "limit", "outcome", "place", "quota", "retry_after_ms", "ticket_id")

    def __init__(
        self,
        ticket_id: str,
        code: str,
        outcome: Outcome | None = None,
        retry_after_ms: int | None = None,
        place: str = "",
        limit: int | None = None,
        quota: QuotaState | None = None,
    ) -> None:
        self.ticket_id: Final = ticket_id
        self.code: Final = code
        self.outcome: Final = outcome
        self.retry_after_ms: Final = retry_after_ms
        self.place: Final = place
        self.limit: Final = limit
        self.quota: Final = quota


class Told:
    """Where counted limits stand: those of a new ticket, or without one those of an `Ask`.

    A ticket's come before what became of it, and count it if it was taken.
    """

    __slots__ = ("states", "ticket_id")

    def __init__(self, ticket_id: str, states: tuple[QuotaState, ...]) -> None:
        self.ticket_id: Final = ticket_id
        self.states: Final = states


class Roster(NamedTuple):
    """The processes at work, told when one joins or is reaped."""

    names: tuple[str, ...]


class Recorded:
    """The usage record of a release stands in the stream under this id."""

    __slots__ = ("stream_id", "ticket_id")

    def __init__(self, ticket_id: str, stream_id: str) -> None:
        self.ticket_id: Final = ticket_id
        self.stream_id: Final = stream_id


class Row(NamedTuple):
    """One field of one table of the ledger, answering `Look`."""

    table: str
    field: str
    value: bytes


Result = Started | Queued | Turned | Recorded | Told | Roster | Row


class Call:
    """One step of one gateway process."""

    __slots__ = ("adopts", "gateway", "operations", "previous", "sequence")

    def __init__(
        self,
        gateway: str,
        previous: int,  # sequence of its last call that was answered
        sequence: int,
        operations: tuple[Operation, ...] = (),
        adopts: bool = False,  # drop what you had of me, the operations say what is true
    ) -> None:
        self.gateway: Final = gateway
        self.previous: Final = previous
        self.sequence: Final = sequence
        self.operations: Final = operations
        self.adopts: Final = adopts


class Reply:
    """What a call did. `must_adopt` means it did nothing, the ledger standing at `stands_at`."""

    __slots__ = ("must_adopt", "now_ms", "open", "results", "sequence", "stands_at")

    def __init__(
        self,
        sequence: int,  # of the call it answers
        now_ms: int,
        open: bool,
        results: tuple[Result, ...] = (),
        must_adopt: bool = False,
        stands_at: int = 0,
    ) -> None:
        self.sequence: Final = sequence
        self.now_ms: Final = now_ms
        self.open: Final = open
        self.results: Final = results
        self.must_adopt: Final = must_adopt
        self.stands_at: Final = stands_at
