"""The waiting side of a ledger: futures for tickets, whichever store decides.

Rule 1: every admitted ticket's future ends exactly once: a grant or `Refused`.
Rule 2: a grant nobody waits for any more is released at once, so a caller that was cancelled
between two lines of code leaks nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

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

#: While anything waits here, time must pass in the ledger: timeouts, spills, silence of others.
TICK_S = 0.25
HEARTBEAT_S = 1.0

CODE_OF = {
    Outcome.EVICTED_TIMED_OUT: "queue_timeout",
    Outcome.EVICTED_NO_REPLICA: "no_replica",
    Outcome.EVICTED_REVOKED: "revoked",
    Outcome.EVICTED_SHUTTING_DOWN: "shutting_down",
}

Recorded = Callable[[bytes, str], None]  # a usage record and its id in the stream


class LedgerShell(ABC):
    """The `Ledger` protocol over anything that takes operations and brings results."""

    def __init__(self, recorded: Recorded | None = None) -> None:
        self._futures: dict[str, asyncio.Future[Grant]] = {}
        self._records: dict[str, bytes] = {}
        self._recorded = recorded
        #: Where counts and recount differed last time; exported as `fairway_ledger_mismatch`.
        self.mismatches: list[str] = []
        self._asked: deque[asyncio.Future[tuple[QuotaState, ...]]] = deque()

    @abstractmethod
    def _send(self, *operations: op.Operation) -> None:
        """Give the operations to the ledger in this order; must not wait."""

    @abstractmethod
    async def view(self) -> LedgerView:
        """Return the whole picture at one instant."""

    @abstractmethod
    async def glance(self) -> LedgerView:
        """Return the picture without looking ahead."""

    # Tickets

    def admit(self, ticket: Ticket) -> asyncio.Future[Grant]:
        """Queue the ticket; the future resolves with its grant or raises `Refused`."""
        return self._waiting(ticket.ticket_id, op.Enqueue(ticket))

    def put_back(self, ticket_id: str, *, avoid: str = "") -> asyncio.Future[Grant]:
        """Undo a grant the engine would not take: same rank, no retry spent."""
        return self._waiting(ticket_id, op.PutBack(ticket_id, avoid))

    def _waiting(self, ticket_id: str, operation: op.Operation) -> asyncio.Future[Grant]:
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        if ticket_id in self._futures:
            future.set_exception(Refused("duplicate_ticket"))
            return future
        self._futures[ticket_id] = future
        self._send(operation)
        if not future.done():
            future.add_done_callback(partial(self._abandoned, ticket_id))
        return future

    def _abandoned(self, ticket_id: str, future: asyncio.Future[Grant]) -> None:
        """Take the ticket of a cancelled waiter out of the queue."""
        if future.cancelled() and self._futures.get(ticket_id) is future:
            self.cancel(ticket_id, Outcome.EVICTED_CLIENT_GONE)

    def cancel(self, ticket_id: str, outcome: Outcome) -> None:
        """Take a ticket out of the queue; no effect when it is not queued any more."""
        future = self._futures.pop(ticket_id, None)
        if future is None:
            return
        if not future.done():
            code = CODE_OF.get(outcome, "client_gone")
            self._refuse(future, Refused(code, outcome=outcome))
        self._send(op.Cancel(ticket_id, outcome))

    @staticmethod
    def _refuse(future: asyncio.Future[Grant], refused: Refused) -> None:
        future.set_exception(refused)
        # Whoever asked may be gone; asyncio must not complain that nobody looked.
        future.exception()

    def release(self, ticket_id: str, settlement: Settlement) -> None:
        """End a lease; an unknown id has no effect."""
        outcome, prompt, cached, completion, record = settlement
        if record and self._recorded is not None:
            self._records[ticket_id] = record
        uncached, tokens = max(0, prompt - cached), prompt + completion
        self._send(op.Release(ticket_id, outcome, uncached, completion, tokens, record))

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

    def ask(self, charges: tuple[Charge, ...]) -> asyncio.Future[tuple[QuotaState, ...]]:
        """Ask where counted limits stand; told in the same step as what was sent just before."""
        future: asyncio.Future[tuple[QuotaState, ...]] = asyncio.get_running_loop().create_future()
        if charges:
            self._asked.append(future)
            self._send(op.Ask(charges))
        else:
            future.set_result(())
        return future

    async def quota(self, charges: tuple[Charge, ...]) -> tuple[QuotaState, ...]:
        """Return where each counted limit stands, without charging anything."""
        return await self.ask(charges)

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
                # Answers come in the order of the questions; an asker may have left.
                future = self._asked.popleft()
                if not future.done():
                    future.set_result(result.states)

    def _granted(self, started: op.Started) -> None:
        future = self._futures.pop(started.ticket_id, None)
        if future is None or future.done():
            # Granted in the moment its client left: the engine never hears of it.
            self._send(op.Release(started.ticket_id, Outcome.EVICTED_CLIENT_GONE))
            return
        future.set_result(
            Grant(
                started.ticket_id,
                started.replica_id,
                started.rank_ms,
                started.started_ms - started.arrived_ms,
            )
        )

    def _turned(self, turned: op.Turned) -> None:
        future = self._futures.pop(turned.ticket_id, None)
        if future is None or future.done():
            return
        self._refuse(
            future,
            Refused(
                turned.code,
                outcome=turned.outcome,
                retry_after_ms=turned.retry_after_ms,
                place=turned.place,
                limit=turned.limit,
                quota=turned.quota,
            ),
        )
