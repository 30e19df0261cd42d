"""What one gateway process has said to the ledger and what it has heard back, without any I/O.

Rule 1: one call is under way at a time; what arrives meanwhile goes into the next. Rule 2: each
call carries the sequence before it, so the ledger notices whatever was lost: its data, a reply,
this process's own entries. It then answers "adopt", and this process says what is true: the
leases it holds, then the releases not yet confirmed, then the tickets that wait here.
Rule 3: a call whose reply was lost is told apart from one that never ran by the sequence the
ledger stands at, so a release (and its usage record) counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from gateway.core.types import Ticket
from gateway.ledger import operations as op

#: Operations in one call; a larger one would hold the server up for everybody.
MOST_OPERATIONS: Final = 256


class Mine:
    """One ticket of this process, from `admit` to the confirmed release."""

    __slots__ = (
        "ageing_since_ms", "arrived_ms", "is_reading", "leaving", "seq", "started", "ticket",
    )  # fmt: skip

    def __init__(self, ticket: Ticket) -> None:
        self.ticket: Final = ticket
        self.seq: int | None = None  # None: the ledger has not confirmed that it knows the ticket
        self.arrived_ms = 0
        self.ageing_since_ms: int | None = None
        self.started: op.Started | None = None
        self.is_reading = True
        self.leaving: op.Operation | None = None  # a release or cancel not confirmed yet


class Batch:
    """Pending and unconfirmed operations of one process, and the tickets behind them."""

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self.known_ms = 0  # latest ledger time heard
        self.is_open = False
        self.tickets: dict[str, Mine] = {}
        self.adoptions = 0
        self.peers: frozenset[str] = frozenset()  # other processes that may hold leases
        self._sequence = 0
        self._pending: deque[op.Operation] = deque()
        self._in_flight: op.Call | None = None
        self._policies: dict[tuple[str, str, str], op.Operation] = {}

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    @property
    def is_waiting(self) -> bool:
        """Tell whether a call is under way."""
        return self._in_flight is not None

    @property
    def has_queued(self) -> bool:
        return any(mine.started is None for mine in self.tickets.values())

    def may_release(self, ticket_id: str) -> bool:
        """Tell whether a release would end anything: the ticket is here and not leaving yet."""
        mine = self.tickets.get(ticket_id)
        return mine is not None and mine.leaving is None

    def add(self, operation: op.Operation) -> None:
        """Note an operation for the next call."""
        self._note(operation)
        self._pending.append(operation)

    def _note(self, operation: op.Operation) -> None:
        """Remember what an adoption would have to say."""
        if isinstance(operation, op.Enqueue):
            self.tickets[operation.ticket.ticket_id] = Mine(operation.ticket)
        elif isinstance(operation, (op.Release, op.Cancel)):
            mine = self.tickets.get(operation.ticket_id)
            if mine is not None:
                mine.leaving = operation
        elif isinstance(operation, op.PutBack):
            mine = self.tickets.get(operation.ticket_id)
            if mine is not None:
                mine.started = None
        elif isinstance(operation, op.PrefillDone):
            mine = self.tickets.get(operation.ticket_id)
            if mine is not None:
                mine.is_reading = False
        else:
            self._note_policy(operation)

    def _note_policy(self, operation: op.Operation) -> None:
        known = self._policies
        match operation:
            case op.WriteKey(policy):
                known[("key", policy.key_id, str(policy.service_class))] = operation
            case op.WriteUser(policy):
                known[("user", policy.user_id, policy.service_class)] = operation
            case op.WritePool(policy):
                known[("pool", policy.pool, "")] = operation
            case op.WriteReplica(policy):
                known[("replica", policy.replica_id, "")] = operation
            case op.Observe():
                known[("seen", operation.replica_id, "")] = operation
            case op.RemoveReplica(replica_id):
                known.pop(("replica", replica_id, ""), None)
                known.pop(("seen", replica_id, ""), None)
            case _:
                pass

    def next_call(self) -> op.Call | None:
        """Return the call to send now, None while one is under way."""
        if self._in_flight is not None:
            return None
        if len(self._pending) <= MOST_OPERATIONS:
            operations = tuple(self._pending)
            self._pending.clear()
        else:
            operations = tuple(self._pending.popleft() for _ in range(MOST_OPERATIONS))
        self._in_flight = op.Call(self.gateway, self._sequence, self._sequence + 1, operations)
        return self._in_flight

    def again(self) -> op.Call | None:
        """Return the call under way, to be sent again because its reply may be lost."""
        return self._in_flight

    def answer(self, reply: op.Reply) -> tuple[op.Result, ...]:
        """Take a reply and return what it means for tickets here."""
        call = self._in_flight
        if call is None or reply.sequence != call.sequence:
            return ()  # late or doubled: its call was answered before
        self.known_ms, self.is_open = max(self.known_ms, reply.now_ms), reply.open
        if reply.must_adopt:
            return self._adopt(call, has_run=reply.stands_at == call.sequence)
        self._in_flight, self._sequence = None, call.sequence
        for operation in call.operations:
            if isinstance(operation, (op.Release, op.Cancel)):
                self._confirm(operation)
        for result in reply.results:
            self._learn(result)
        return reply.results

    def give_up(self) -> None:
        """Adopt because the ledger answered with an error: what it did is not known."""
        if self._in_flight is not None:
            self._adopt(self._in_flight, has_run=False)

    def _confirm(self, operation: op.Release | op.Cancel) -> None:
        mine = self.tickets.get(operation.ticket_id)
        # A cancel that came too late leaves a lease; whoever hears of its grant releases it.
        if mine is not None and mine.leaving is operation:
            del self.tickets[operation.ticket_id]

    def _learn(self, result: op.Result) -> None:
        """Note what a result says of a ticket of ours."""
        if isinstance(result, (op.Started, op.Queued)):
            mine = self.tickets.get(result.ticket_id)
            if mine is None:
                return  # cancelled in the same moment: the shell releases it
            mine.seq, mine.arrived_ms = result.seq, result.arrived_ms
            mine.ageing_since_ms = result.ageing_since_ms
            if isinstance(result, op.Started):
                mine.started, mine.is_reading = result, True
        elif isinstance(result, op.Turned):
            self.tickets.pop(result.ticket_id, None)
        elif isinstance(result, op.Roster):
            # A ledger that has lost its data knows only of those that have come back so far.
            known = self.peers if not self.is_open else frozenset()
            self.peers = (known | frozenset(result.names)) - {self.gateway}

    # Adoption

    def _adopt(self, call: op.Call, *, has_run: bool) -> tuple[op.Result, ...]:
        """Replace the call under way by one that says what is true here."""
        self.adoptions += 1
        done: list[op.Result] = []
        if has_run:
            # What it queued and started is dropped and told anew; its releases took place.
            for operation in call.operations:
                if isinstance(operation, op.Release):
                    self.tickets.pop(operation.ticket_id, None)
                    # Its place in the stream is not known, but nothing written later is before it.
                    done.append(op.Recorded(operation.ticket_id, f"{self.known_ms + 1}-0"))
        untold = self._pending if has_run else [*call.operations, *self._pending]
        # What a lost reply would have told is asked again, or later answers would be taken for it.
        asked = [o for o in call.operations if isinstance(o, op.Ask | op.Look)] if has_run else []
        leases = list(self._leases())
        operations = [
            *leases,
            *([op.Peers(tuple(sorted(self.peers)))] if self.peers else []),
            *self._policies.values(),
            *self._leavers(),
            *self._queue(),
            *asked,
            *(o for o in untold if isinstance(o, op.Advance | op.Ask | op.Look)),
        ]
        # All leases go in one call, the first: nothing may start that they leave no room for.
        cut = max(MOST_OPERATIONS, len(leases))
        self._pending = deque(operations[cut:])
        self._in_flight = op.Call(
            self.gateway, 0, call.sequence + 1, tuple(operations[:cut]), adopts=True
        )
        return tuple(done)

    def _leases(self) -> Iterable[op.Operation]:
        for mine in self.tickets.values():
            started = mine.started
            if started is not None:
                yield op.Hold(
                    mine.ticket, started.replica_id, started.seq, started.arrived_ms,
                    started.ageing_since_ms, started.started_ms, started.charge, mine.is_reading,
                )  # fmt: skip

    def _leavers(self) -> Iterable[op.Operation]:
        for name, mine in list(self.tickets.items()):
            if mine.started is not None and mine.leaving is not None:
                yield mine.leaving
            elif isinstance(mine.leaving, op.Cancel):
                del self.tickets[name]

    def _queue(self) -> Iterable[op.Operation]:
        waiting = [m for m in self.tickets.values() if m.started is None]
        known = [m for m in waiting if m.seq is not None]
        for mine in sorted(known, key=lambda m: m.seq or 0):
            yield op.Wait(mine.ticket, mine.seq or 0, mine.arrived_ms, mine.ageing_since_ms)
        for mine in waiting:
            if mine.seq is None:
                yield op.Enqueue(mine.ticket)
