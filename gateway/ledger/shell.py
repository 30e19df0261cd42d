"""The waiting side of a ledger: who waits for which ticket, whichever store decides.

Rule 1: the waiter of every admitted ticket hears exactly one word: a grant or `Refused`. Whoever
cancels has heard enough.
Rule 2: a grant nobody waits for any more is released at once, so a caller that left between two
lines of code leaks nothing.
Rule 3: waiters are called after the step, never within it; an error of one is not another's.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from gateway.core.types import (
    Charge,
    Grant,
    LedgerView,
    Outcome,
    QuotaState,
    Settlement,
    Standing,
    Ticket,
)
from gateway.ledger import operations as op
from gateway.ledger.interface import (
    KeyPolicy,
    PoolPolicy,
    Refused,
    ReplicaPolicy,
    UserPolicy,
)
from gateway.ledger.waiting import Waiter

log = logging.getLogger(__name__)

#: While anything waits here, time must pass in the ledger: timeouts, spills, silence of others.
TICK_S = 0.25
HEARTBEAT_S = 1.0

Recorded = Callable[[bytes, str], None]  # a usage record and its id in the stream


class LedgerShell(ABC):
    """The `Ledger` protocol over anything that takes operations and brings results."""

    def __init__(self, recorded: Recorded | None = None) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._waiters: dict[str, Waiter] = {}
        self._records: dict[str, bytes] = {}
        self._recorded = recorded
        #: Where counts and recount differed last time; exported as `fairway_ledger_mismatch`.
        self.mismatches: list[str] = []
        self._asked: deque[asyncio.Future[tuple[QuotaState, ...]]] = deque()

    @abstractmethod
    def _send(self, operation: op.Operation) -> None:
        """Give the ledger an operation after those before it; must not wait."""

    @abstractmethod
    async def view(self) -> LedgerView:
        """Return the whole picture at one instant."""

    @abstractmethod
    async def glance(self) -> LedgerView:
        """Return the picture without looking ahead."""

    # Tickets

    def admit(self, ticket: Ticket, waiter: Waiter) -> None:
        """Queue the ticket; its waiter hears where its limits stand, then yes or no."""
        if ticket.ticket_id in self._waiters:
            waiter.refused(Refused("duplicate_ticket"))
            return
        self._waiters[ticket.ticket_id] = waiter
        self._send(op.Enqueue(ticket))

    def put_back(self, ticket_id: str, waiter: Waiter, *, avoid: str = "") -> None:
        """Undo a grant the engine would not take: same rank, no retry spent."""
        self._waiters[ticket_id] = waiter
        self._send(op.PutBack(ticket_id, avoid))

    def cancel(self, ticket_id: str, outcome: Outcome) -> None:
        """Take a ticket out of the queue; no effect when nobody waits for it any more."""
        if self._waiters.pop(ticket_id, None) is not None:
            self._send(op.Cancel(ticket_id, outcome))

    def _turn_all_away(self, refused: Refused, outcome: Outcome) -> None:
        """Say no to everybody who waits here."""
        for ticket_id, waiter in list(self._waiters.items()):
            if self._waiters.pop(ticket_id, None) is not None:  # it has not left meanwhile
                self._send(op.Cancel(ticket_id, outcome))
                self._refuse(waiter, refused)

    def release(self, ticket_id: str, settlement: Settlement) -> None:
        """End a lease; an unknown id has no effect."""
        if settlement.record and self._recorded is not None:
            self._records[ticket_id] = settlement.record
        self._send(
            op.Release(
                ticket_id,
                settlement.outcome,
                max(0, settlement.prompt_tokens - settlement.cached_tokens),
                settlement.completion_tokens,
                settlement.tokens,
                settlement.record,
            )
        )

    def prefill_done(self, ticket_id: str) -> None:
        self._send(op.PrefillDone(ticket_id))

    # Policies

    def write_key(self, policy: KeyPolicy) -> None:
        self._send(op.WriteKey(policy))

    def write_user(self, policy: UserPolicy) -> None:
        self._send(op.WriteUser(policy))

    def write_pool(self, policy: PoolPolicy) -> None:
        self._send(op.WritePool(policy))

    def write_replica(self, policy: ReplicaPolicy) -> None:
        self._send(op.WriteReplica(policy))

    def remove_replica(self, replica_id: str) -> None:
        self._send(op.RemoveReplica(replica_id))

    def observe_replica(
        self,
        replica_id: str,
        *,
        accepts: bool,
        slots: int | None = None,
        incarnation: str = "",
        affine: bool = True,
    ) -> None:
        self._send(op.Observe(replica_id, accepts, slots, incarnation, affine))

    def advance(self, ms: int) -> None:
        self._send(op.Advance(ms))

    async def quota(self, charges: tuple[Charge, ...]) -> tuple[QuotaState, ...]:
        """Return where each counted limit stands, without charging anything."""
        if not charges:
            return ()
        future: asyncio.Future[tuple[QuotaState, ...]] = self._loop.create_future()
        self._asked.append(future)
        self._send(op.Ask(charges))
        return await future

    async def standing(self, ticket_id: str) -> Standing | None:
        view = await self.view()
        return next((s for s in view.queued if s.ticket_id == ticket_id), None)

    # Results

    def _take(self, results: Iterable[op.Result]) -> None:
        for result in results:
            if isinstance(result, op.Started):
                self._granted(result)
            elif isinstance(result, op.Recorded):
                if self._recorded is not None:
                    self._recorded(self._records.pop(result.ticket_id, b""), result.stream_id)
            elif isinstance(result, op.Turned):
                self._turned(result)
            elif isinstance(result, op.Told):
                self._told(result)

    def _granted(self, started: op.Started) -> None:
        waiter = self._waiters.pop(started.ticket_id, None)
        if waiter is None:
            # Granted in the moment its client left: the engine never hears of it.
            self._send(op.Release(started.ticket_id, Outcome.EVICTED_CLIENT_GONE))
            return
        grant = Grant(
            started.ticket_id,
            started.replica_id,
            started.rank_ms,
            started.started_ms - started.arrived_ms,
        )
        try:
            waiter.granted(grant)
        except Exception:
            log.exception("the waiter of %s failed", started.ticket_id)

    def _turned(self, turned: op.Turned) -> None:
        waiter = self._waiters.pop(turned.ticket_id, None)
        if waiter is not None:
            refused = Refused(
                turned.code,
                outcome=turned.outcome,
                retry_after_ms=turned.retry_after_ms,
                place=turned.place,
                limit=turned.limit,
                quota=turned.quota,
            )
            self._refuse(waiter, refused)

    @staticmethod
    def _refuse(waiter: Waiter, refused: Refused) -> None:
        try:
            waiter.refused(refused)
        except Exception:
            log.exception("a waiter failed")

    def _told(self, told: op.Told) -> None:
        if told.ticket_id:
            waiter = self._waiters.get(told.ticket_id)
            if waiter is not None:
                waiter.stands(told.states)
            return
        # Answers come in the order of the questions; an asker may have left.
        future = self._asked.popleft()
        if not future.done():
            future.set_result(told.states)
