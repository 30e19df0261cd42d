"""What the gateway asks of a ledger, whichever store stands behind it.

The ledger alone decides who runs (docs/scheduler.md). Two implementations: `memory` (the readable
reference; one process, simulations, tests) and `redis` (any number of processes). What concerns a
ticket is fire and forget, and its waiter is called back, so that no client's leaving can cancel
a command that frees something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.core.types import (
    Charge,
    LedgerView,
    Outcome,
    QuotaState,
    ServiceClass,
    Settlement,
    Standing,
    Ticket,
)
from gateway.ledger.refused import Refused as Refused

if TYPE_CHECKING:
    from gateway.ledger.waiting import Waiter


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Caps of one key; a key without a policy starts nothing."""

    key_id: str
    version: int  # of the directory; an older one never overwrites a newer one
    live: bool  # False: revoked, expired or disabled; its queued tickets are evicted
    in_flight: int
    queued: int
    in_flight_is_default: bool  # a default batch cap does not bind while idle capacity is lent
    service_class: ServiceClass | None = None  # None: the same caps in both classes


@dataclass(frozen=True, slots=True)
class UserPolicy:
    """Caps of one user in one class over all their keys."""

    user_id: str
    service_class: ServiceClass
    version: int
    in_flight: int | None  # None: the default, computed from the pool's slots
    queued: int
    share: int = 1  # weight in the fair share


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """How one pool is shared between the classes; None means the default of docs/scheduler.md."""

    pool: str
    version: int
    batch_slots: int | None
    batch_slots_idle: int | None
    batch_idle_after_ms: int
    queue_bound_interactive: int
    queue_bound_batch: int
    #: (group, slots): what is kept for a group now; 0 for a reservation that is still to come.
    reserved: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """One replica as the books have it."""

    replica_id: str
    version: int
    pool: str
    slots: int
    prefill_budget: int
    card: str = ""


class Ledger(Protocol):
    """Four verbs for tickets, four for policy, three for looking, and a life of its own."""

    #: Where its counts and a recount differed when last compared; empty when all is well.
    mismatches: list[str]

    def admit(self, ticket: Ticket, waiter: Waiter) -> None:
        """Queue the ticket; its waiter hears where its limits stand, then yes or no."""
        ...

    def cancel(self, ticket_id: str, outcome: Outcome) -> None:
        """Take a ticket out of the queue (no effect when nobody waits for it any more).

        Its waiter hears nothing more.
        """
        ...

    def release(self, ticket_id: str, settlement: Settlement) -> None:
        """End a lease: slots free, service settled, usage appended. Unknown id: no effect."""
        ...

    def put_back(self, ticket_id: str, waiter: Waiter, *, avoid: str = "") -> None:
        """Undo a grant the engine would not take (429/503): same rank, no retry spent.

        `avoid` names a replica it must not return to while another one is up (a retry).
        """
        ...

    def prefill_done(self, ticket_id: str) -> None:
        """First content was seen: give the ticket's prefill budget back."""
        ...

    def write_key(self, policy: KeyPolicy) -> None: ...
    def write_user(self, policy: UserPolicy) -> None: ...
    def write_pool(self, policy: PoolPolicy) -> None: ...
    def write_replica(self, policy: ReplicaPolicy) -> None: ...

    def remove_replica(self, replica_id: str) -> None:
        """Forget a replica; its leases stay counted until they are released."""
        ...

    def observe_replica(
        self,
        replica_id: str,
        *,
        accepts: bool,
        slots: int | None = None,
        incarnation: str = "",
        affine: bool = True,
    ) -> None:
        """Health as this process sees it: does it take new work, with how many slots now.

        A replica takes work unless a living process objects. A new `incarnation` (the engine
        restarted) voids the bindings of sessions to it; without `affine` (the engine itself has
        somebody waiting) sessions are not sent home to it.
        """
        ...

    async def quota(self, charges: tuple[Charge, ...]) -> tuple[QuotaState, ...]:
        """Return where each counted limit stands, without charging anything."""
        ...

    async def standing(self, ticket_id: str) -> Standing | None: ...
    async def view(self) -> LedgerView: ...

    async def glance(self) -> LedgerView:
        """As `view`, but without positions and expected waits: cheap enough for every second."""
        ...

    def advance(self, ms: int) -> None:
        """Move ledger time forward; only where the ledger was made with the test switch."""
        ...

    async def start(self) -> None: ...
    async def close(self) -> None: ...
