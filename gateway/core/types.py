"""The words of the scheduler as plain data; everything here is frozen and free of I/O.

Times inside the ledger are whole milliseconds of *ledger time* (docs/scheduler.md), sizes are
whole tokens, service is whole milli-tokens: Lua and Python must compute the same numbers.

What is made anew for every request is a named tuple: as frozen as a dataclass, made three times
faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


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


class Charge(NamedTuple):
    """One counted limit a ticket draws on: reserved when it is admitted, settled at its end.

    A limit per minute is a leaky bucket (quotas.snapshots.windows); one per day or month is a sum
    in a calendar window. `floor` is what the books say was used in that window, for a ledger that
    has lost its counters: a counter is lifted to it, never lowered.
    """

    counter: str  # who and what is counted: quotas.snapshots.counters.field without the window
    limit: int
    amount: int
    window: str = ""  # name of the calendar window; "" = a minute
    ends_at_ms: int = 0  # Unix time in ms at which the calendar window ends
    floor: int = 0
    settles: bool = True  # tokens: what was really used counts in the end; requests: no


class QuotaState(NamedTuple):
    """One counted limit at one instant: the number on the screen, in headers and at the gate."""

    counter: str
    window: str
    used: int
    limit: int
    resets_in_ms: int | None  # None: what was asked never fits


class Ticket(NamedTuple):
    """One request from arrival to release, as the ledger needs to know it."""

    ticket_id: str  # the request id, unique for ever
    key_id: str
    user_id: str  # whose flow this is; for an application key the end user
    service_class: ServiceClass
    pool: str  # name of the pool, i.e. of the model
    weight: int = 1  # sequences held while in flight
    prefill_tokens: int = 0  # u: estimated prompt tokens not in any cache
    output_tokens: int = 0  # o: estimated completion tokens
    replica_order: tuple[str, ...] = ()  # rendezvous order for its session, best first
    session: str = ""  # session key, "" when it has none
    ttl_ms: int = 60_000  # longest it may stay queued
    place: str = ""  # a kept place shown by a returning client
    fingerprint: str = ""  # hash of the body: finds the place of a client that shows none
    home_wait_ms: int = 2_000  # longest it waits for its session's full home replica
    charges: tuple[Charge, ...] = ()
    interrupted: bytes = b""  # the usage record to append if this process dies with it
    group: str = ""  # its group, where that has slots of the pool reserved; else ""


class Grant(NamedTuple):
    """The ledger's yes: the ticket now holds `weight` slots of this replica."""

    ticket_id: str
    replica_id: str
    rank_ms: int
    queue_wait_ms: int  # in ledger time


class Settlement(NamedTuple):
    """What a ticket really used; given with its release."""

    outcome: Outcome
    prompt_tokens: int  # including cached ones
    cached_tokens: int
    completion_tokens: int
    record: bytes  # the usage record (quotas.snapshots.usage), appended in the same step

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
