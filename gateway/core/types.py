"""The words of the scheduler as plain data; everything here is frozen and free of I/O.

Times inside the ledger are whole milliseconds of *ledger time* (docs/scheduler.md), sizes are
whole tokens, service is whole milli-tokens: Lua and Python must compute the same numbers.

What is made anew for every request is a plain class that only sets its attributes: compiled, it is
made ten times faster than a dataclass or a named tuple.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Word(StrEnum):
    """One of a closed list; hashes as its text does, which an enum's own hash makes slow."""

    __hash__ = str.__hash__


class ServiceClass(Word):
    """Interactive goes first; batch stands as if it had arrived ten minutes later."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Outcome(Word):
    """How a ticket ended. Closed list: used as a metric label and in the usage database."""

    SERVED = "served"
    FAILED = "failed"  # the engine or the way to it broke
    ABORTED = "aborted"  # the client left while it was in flight
    INTERRUPTED = "interrupted"  # its gateway process died; written by the reap
    EVICTED_TIMED_OUT = "evicted_timed_out"
    EVICTED_NO_REPLICA = "evicted_no_replica"
    EVICTED_CLIENT_GONE = "evicted_client_gone"
    EVICTED_REVOKED = "evicted_revoked"
    EVICTED_SHUTTING_DOWN = "evicted_shutting_down"


class Blocker(Word):
    """Why a queued ticket does not run now; every queued ticket has exactly one."""

    OWN_CAP = "own_cap"
    BATCH_POOL = "batch_pool"
    RESERVED = "reserved"  # the slots that are free are kept for a group
    SLOTS = "slots"
    PREFILL = "prefill"
    KV = "kv"
    NO_REPLICA = "no_replica"
    SCHEDULER = "scheduler"


class Charge:
    """One counted limit a ticket draws on: reserved when it is admitted, settled at its end.

    A limit per minute is a leaky bucket (quotas.snapshots.windows); one per day or month is a sum
    in a calendar window. `floor` is what the books say was used in that window, for a ledger that
    has lost its counters: a counter is lifted to it, never lowered.
    """

    __slots__ = ("amount", "counter", "ends_at_ms", "floor", "limit", "settles", "window")

    def __init__(
        self,
        counter: str,  # who and what is counted: quotas.snapshots.counters.field without the window
        limit: int,
        amount: int,
        window: str = "",  # name of the calendar window; "" = a minute
        ends_at_ms: int = 0,  # Unix time in ms at which the calendar window ends
        floor: int = 0,
        settles: bool = True,  # tokens: what was really used counts in the end; requests: no
    ) -> None:
        self.counter: Final = counter
        self.limit: Final = limit
        self.amount: Final = amount
        self.window: Final = window
        self.ends_at_ms: Final = ends_at_ms
        self.floor: Final = floor
        self.settles: Final = settles


class QuotaState:
    """One counted limit at one instant: the number on the screen, in headers and at the gate."""

    __slots__ = ("counter", "limit", "resets_in_ms", "used", "window")

    def __init__(
        self,
        counter: str,
        window: str,
        used: int,
        limit: int,
        resets_in_ms: int | None,  # None: what was asked never fits
    ) -> None:
        self.counter: Final = counter
        self.window: Final = window
        self.used: Final = used
        self.limit: Final = limit
        self.resets_in_ms: Final = resets_in_ms


class Ticket:
    """One request from arrival to release, as the ledger needs to know it."""

    __slots__ = (
        "charges", "fingerprint", "group", "home_wait_ms", "interrupted", "key_id", "output_tokens",
        "place", "pool", "prefill_tokens", "replica_order", "service_class", "session", "ticket_id",
        "ttl_ms", "user_id", "weight",
    )  # fmt: skip

    def __init__(
        self,
        ticket_id: str,  # the request id, unique for ever
        key_id: str,
        user_id: str,  # whose flow this is; for an application key the end user
        service_class: ServiceClass,
        pool: str,  # name of the pool, i.e. of the model
        weight: int = 1,  # sequences held while in flight
        prefill_tokens: int = 0,  # u: estimated prompt tokens not in any cache
        output_tokens: int = 0,  # o: estimated completion tokens
        replica_order: tuple[str, ...] = (),  # rendezvous order for its session, best first
        session: str = "",  # session key, "" when it has none
        ttl_ms: int = 60_000,  # longest it may stay queued
        place: str = "",  # a kept place shown by a returning client
        fingerprint: str = "",  # hash of the body: finds the place of a client that shows none
        home_wait_ms: int = 2_000,  # longest it waits for its session's full home replica
        charges: tuple[Charge, ...] = (),
        interrupted: bytes = b"",  # the usage record to append if this process dies with it
        group: str = "",  # its group, where that has slots of the pool reserved; else ""
    ) -> None:
        self.ticket_id: Final = ticket_id
        self.key_id: Final = key_id
        self.user_id: Final = user_id
        self.service_class: Final = service_class
        self.pool: Final = pool
        self.weight: Final = weight
        self.prefill_tokens: Final = prefill_tokens
        self.output_tokens: Final = output_tokens
        self.replica_order: Final = replica_order
        self.session: Final = session
        self.ttl_ms: Final = ttl_ms
        self.place: Final = place
        self.fingerprint: Final = fingerprint
        self.home_wait_ms: Final = home_wait_ms
        self.charges: Final = charges
        self.interrupted: Final = interrupted
        self.group: Final = group


class Grant:
    """The ledger's yes: the ticket now holds `weight` slots of this replica."""

    __slots__ = ("queue_wait_ms", "rank_ms", "replica_id", "ticket_id")

    def __init__(
        self,
        ticket_id: str,
        replica_id: str,
        rank_ms: int,
        queue_wait_ms: int,  # in ledger time
    ) -> None:
        self.ticket_id: Final = ticket_id
        self.replica_id: Final = replica_id
        self.rank_ms: Final = rank_ms
        self.queue_wait_ms: Final = queue_wait_ms


class Settlement:
    """What a ticket really used; given with its release."""

    __slots__ = ("cached_tokens", "completion_tokens", "outcome", "prompt_tokens", "record")

    def __init__(
        self,
        outcome: Outcome,
        prompt_tokens: int,  # including cached ones
        cached_tokens: int,
        completion_tokens: int,
        record: bytes,  # the usage record (quotas.snapshots.usage), appended in the same step
    ) -> None:
        self.outcome: Final = outcome
        self.prompt_tokens: Final = prompt_tokens
        self.cached_tokens: Final = cached_tokens
        self.completion_tokens: Final = completion_tokens
        self.record: Final = record

    @property
    def tokens(self) -> int:
        """Return the tokens that count against limits: prompt, cached or not, and answer."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one queued ticket stands; what its owner is shown."""

    ticket_id: str
    key_id: str
    user_id: str
    service_class: ServiceClass
    pool: str
    position: int  # 1 + tickets expected to start before it
    queued_ms: int
    rank_ms: int
    effective_priority_ms: int  # ledger now - rank: larger is sooner
    ageing_starts_ms: int | None  # None: outside its flow's accrual window
    blocker: Blocker
    expected_wait_ms: int | None  # None: unknown


@dataclass(frozen=True, slots=True)
class Holding:
    """One lease: who runs where since when."""

    ticket_id: str
    key_id: str
    user_id: str
    service_class: ServiceClass
    pool: str
    replica_id: str
    weight: int
    running_ms: int


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A consistent picture of the ledger at one instant, for the status page and `queue`."""

    now_ms: int
    open: bool  # False: closed for starts (after a loss of Redis)
    queued: tuple[Standing, ...]  # in expected order of start
    running: tuple[Holding, ...]
    batch_limit: dict[str, int]  # pool -> B in force now
    borrowed: dict[str, bool]  # pool -> batch uses idle capacity now
    # pool -> class -> wait of a ticket of somebody new who came now; None: unknown
    newcomer_wait_ms: dict[str, dict[str, int | None]] = field(default_factory=dict)
