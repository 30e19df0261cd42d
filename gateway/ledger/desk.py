"""What happens to one ticket: it enters, waits, starts, goes back, ends or is put out.

Rule 1: a refusal changes nothing but a kept place; every check comes before the first change.
Rule 2: whoever leaves the queue or a slot makes room in the accrual window at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core import ranking, sharing
from gateway.core.placing import Replica
from gateway.core.types import Charge, Outcome, Ticket
from gateway.ledger import operations as op
from gateway.ledger.homes import Homes
from gateway.ledger.places import Places
from gateway.ledger.quota import Quotas
from gateway.ledger.state import BATCH, INTERACTIVE, Entry, FlowId, LedgerState, add

DEFAULT_HOLD_MS: Final = 10_000
SHORTEST_RETRY_MS: Final = 1_000
#: Of the average time a lease is held. With 8 its noise was the largest error of expected waits.
HOLD_WEIGHT: Final = 32
SERVED: Final = Outcome.SERVED  # a member of an enum is slow to look up

Post = Callable[[str, op.Result], None]  # gateway, what happened to its ticket


class Desk:
    """Everything that may befall a ticket, on behalf of the gateway that calls."""

    def __init__(
        self, state: LedgerState, post: Post, append_usage: Callable[[bytes], str]
    ) -> None:
        self.state = state
        self.caller = ""
        self.answers: list[op.Result] = []  # to the caller
        self.places = Places()
        self.quotas = Quotas()
        self.homes = Homes()
        #: Starts a new ticket that nobody stands before; wired to the dispatcher by the store.
        self.start_at_once: Callable[[Entry], bool] = lambda entry: False
        self._post = post
        self._append_usage = append_usage

    def _tell(self, gateway: str, result: op.Result) -> None:
        """Tell the caller at once, another process when it calls."""
        if gateway == self.caller:
            self.answers.append(result)
        else:
            self._post(gateway, result)

    def enqueue(self, enqueue: op.Enqueue) -> None:
        state, ticket = self.state, enqueue.ticket
        now_ms = state.now_ms
        entry = Entry(ticket, self.caller, 0, now_ms, now_ms + ticket.ttl_ms)
        refusal, place = self._refusal(entry), None
        if refusal is None:
            place = self.places.take(ticket, now_ms) if self.places.kept else None
            refusal = None if place else self._full(entry)
        if ticket.charges:
            if refusal is None:
                self.quotas.take(ticket.charges, now_ms)
            self.tell_limits(ticket.ticket_id, ticket.charges)
        if refusal is not None:
            self._tell(self.caller, refusal)
            return
        state.seq += 1
        entry.seq = state.seq
        if place is not None:
            entry.seq, entry.ageing_since_ms = place.seq, place.ageing_since_ms
        self.take_in(entry)

    def tell_limits(self, ticket_id: str, charges: tuple[Charge, ...]) -> None:
        """Tell the caller where limits stand."""
        states = self.quotas.standing(charges, self.state.now_ms)
        self._tell(self.caller, op.Told(ticket_id, states))

    def take_in(self, entry: Entry) -> None:
        """Queue a new ticket, start its ageing if its class allows, and tell its owner."""
        state = self.state
        if entry.ageing_since_ms is None and entry.ticket.service_class is INTERACTIVE:
            entry.ageing_since_ms = state.now_ms
        state.enter(entry)
        if self.start_at_once(entry):
            return
        state.queue(entry)
        self.open_window(entry, but=entry)
        self._tell_queued(entry)

    def _refusal(self, entry: Entry) -> op.Turned | None:
        """Return why the ticket may not even wait, apart from full queues."""
        state, ticket = self.state, entry.ticket
        name, cls = ticket.ticket_id, ticket.service_class
        key, user = state.keys.get(entry.key), state.users.get(entry.user)
        if name in state.entries:
            return op.Turned(name, "duplicate_ticket")
        if key is not None and not key.live:
            return op.Turned(name, "revoked")
        if key is None or user is None or ticket.pool not in state.pools:
            return op.Turned(name, "directory_unavailable", retry_after_ms=5_000)
        # One sequence of somebody who may have any fits wherever there is a slot.
        if ticket.weight > 1 or not (key.in_flight and user.in_flight and cls is INTERACTIVE):
            largest = self._largest_weight(entry)
            if largest is not None and ticket.weight > largest:
                return op.Turned(name, "weight_too_large", limit=largest)
        if ticket.charges:
            over = self.quotas.refusal(ticket.charges, state.now_ms)
            if over is not None:
                wait, limit = over.resets_in_ms, over.limit
                return op.Turned(name, "over_quota", None, wait, limit=limit, quota=over)
        return None

    def _largest_weight(self, entry: Entry) -> int | None:
        """Return the most sequences a ticket may ever have, by what is registered, up or not."""
        state, ticket = self.state, entry.ticket
        cls, registered = ticket.service_class, state.registered.get(ticket.pool)
        if registered is None:
            return None
        total, user = sum(registered), state.users[entry.user]
        caps = [
            state.keys[entry.key].in_flight,
            sharing.user_cap(user.in_flight, cls is BATCH, total),
            max(registered),
        ]
        if cls is BATCH:
            pool = state.pools[ticket.pool]
            caps.append(sharing.batch_slots(pool.batch_slots, None, total, lent=False))
        return min(caps)

    def _full(self, entry: Entry) -> op.Turned | None:
        """Return the refusal of a full queue; an interactive ticket keeps its place in it."""
        state, ticket = self.state, entry.ticket
        cls, key, user, kind = ticket.service_class, entry.key, entry.user, entry.kind
        pool = state.pools[ticket.pool]
        of_key, of_user = state.keys[key].queued, state.users[user].queued
        of_pool = pool.queue_bound_batch if cls is BATCH else pool.queue_bound_interactive
        if state.key_queued.get(key, 0) >= of_key:
            code, limit, busy = "queue_full_key", of_key, state.key_in_flight.get(key, 0)
        elif state.user_queued.get(user, 0) >= of_user:
            code, limit, busy = "queue_full_key", of_user, state.user_in_flight.get(user, 0)
        elif state.pool_queued.get(kind, 0) >= of_pool:
            busy = state.pool_tickets.get(kind, 0) - of_pool
            code, limit = "queue_full", of_pool
        else:
            return None
        retry = self._retry_after(ticket, busy)
        place = ""
        if cls is INTERACTIVE:
            state.seq += 1
            place = self._keep_place(ticket, state.seq, state.now_ms, retry)
        return op.Turned(ticket.ticket_id, code, None, retry, place, limit)

    def _keep_place(self, ticket: Ticket, seq: int, since: int | None, retry_ms: int) -> str:
        state = self.state
        user = state.users.get((ticket.service_class, ticket.user_id))
        most = user.queued if user else 0
        if ticket.service_class is BATCH:
            most = state.window_size((BATCH, ticket.user_id))
        expires = state.now_ms + retry_ms + state.rules.place_grace_ms
        return self.places.keep(ticket, seq, since, expires, most)

    def _retry_after(self, ticket: Ticket, busy: int) -> int:
        """Return when the next of `busy` running tickets should end."""
        hold = self.state.hold_average.get((ticket.pool, ticket.service_class), DEFAULT_HOLD_MS)
        return max(SHORTEST_RETRY_MS, hold // max(1, busy))

    def _retry_after_timeout(self, ticket: Ticket) -> int:
        """Return how long the queue of its class would take to empty."""
        state, flow = self.state, (ticket.pool, ticket.service_class)
        hold = state.hold_average.get(flow, DEFAULT_HOLD_MS)
        slots = state.slots_up(ticket.pool)
        if ticket.service_class is BATCH:
            slots = state.batch_limit(ticket.pool)
        return max(SHORTEST_RETRY_MS, hold * state.pool_queued.get(flow, 0) // max(1, slots))

    def cancel(self, ticket_id: str) -> None:
        entry = self._own(ticket_id, queued=True)
        if entry is not None:
            self.drop_queued(entry)

    def drop_queued(self, entry: Entry) -> None:
        """Let a queued ticket go unserved: what it reserved is given back."""
        self.quotas.settle(entry.ticket.charges, 0, self.state.now_ms)
        self.state.unqueue(entry)
        self.state.leave(entry)
        self.open_window(entry)

    def release(self, release: op.Release) -> None:
        entry = self._own(release.ticket_id, queued=False)
        if entry is None:
            return
        state, ticket, kind = self.state, entry.ticket, entry.kind
        user = state.users.get(entry.user)
        written = release.completion_tokens
        actual = sharing.charge(release.prompt_tokens, written, user.share if user else 1)
        add(state.service, entry.user, actual - entry.charge)
        if release.outcome is SERVED:
            state.completion_average[entry.flow] = sharing.moving_average(
                state.completion_average.get(entry.flow), written
            )
            state.hold_average[kind] = sharing.moving_average(
                state.hold_average.get(kind), state.now_ms - entry.started_ms, HOLD_WEIGHT
            )
            if ticket.session:
                # Where it was served its cache is now; that moves the session, too.
                end_ms = state.now_ms + state.rules.binding_ms
                self.homes.bind(ticket.session, entry.replica_id, end_ms)
        if ticket.charges:
            self.quotas.settle(ticket.charges, release.tokens, state.now_ms)
        state.unhold(entry)
        state.leave(entry)
        if release.record:
            stream_id = self._append_usage(release.record)
            self._tell(self.caller, op.Recorded(release.ticket_id, stream_id))

    def put_back(self, put_back: op.PutBack) -> None:
        entry = self._own(put_back.ticket_id, queued=False)
        if entry is None:
            return
        self.give_back(entry)
        entry.avoid = put_back.avoid
        self.state.queue(entry)
        self.open_window(entry)
        if self.state.now_ms >= entry.deadline_ms:
            self.evict(entry)
        elif not self._is_live(entry):
            self.revoke(entry)

    def revoke(self, entry: Entry) -> None:
        """Put a queued ticket out because its key is no longer good."""
        self.drop_queued(entry)
        name = entry.ticket.ticket_id
        self._tell(entry.gateway, op.Turned(name, "revoked", Outcome.EVICTED_REVOKED))

    def _is_live(self, entry: Entry) -> bool:
        key = self.state.keys.get(entry.key)
        return key is None or key.live

    def give_back(self, entry: Entry) -> None:
        """Undo a start: slots and service as if it had not been."""
        add(self.state.service, entry.user, -entry.charge)
        self.state.unhold(entry)

    def prefill_done(self, ticket_id: str) -> None:
        entry = self._own(ticket_id, queued=False)
        if entry is not None:
            self.state.stop_reading(entry)

    def _own(self, ticket_id: str, *, queued: bool) -> Entry | None:
        entry = self.state.entries.get(ticket_id)
        if entry is None or entry.gateway != self.caller or bool(entry.replica_id) is queued:
            return None
        return entry

    def started(self, entry: Entry) -> None:
        entry.is_accepted = entry.gateway == self.caller
        self.open_window(entry)
        self._tell(
            entry.gateway,
            op.Started(
                entry.ticket.ticket_id, entry.replica_id, entry.seq, entry.arrived_ms,
                entry.ageing_since_ms, entry.rank_ms, entry.started_ms, entry.charge,
            ),
        )  # fmt: skip

    # The accrual window

    def open_window(self, gone: Entry, but: Entry | None = None) -> None:
        """Fill the place in its flow's accrual window that a ticket has left or may take."""
        if gone.ticket.service_class is BATCH and gone.flow in self.state.flows:
            self.widen_window(gone.flow, but)

    def widen_window(self, flow_id: FlowId, but: Entry | None = None) -> None:
        """Let the oldest tickets of a batch flow begin to age, as many as the window holds."""
        flow = self.state.flows.get(flow_id)
        if flow is None:
            return
        entries = flow.oldest_first()
        places = self.state.window_size(entries[0].user)
        if not self.state.rules.accrual_window:
            places = len(entries)
        for i in ranking.window((e.ageing_since_ms is not None for e in entries), places):
            entries[i].ageing_since_ms = self.state.now_ms
            if entries[i] is not but:
                self._tell_queued(entries[i])

    def _tell_queued(self, entry: Entry) -> None:
        name, since = entry.ticket.ticket_id, entry.ageing_since_ms
        self._tell(entry.gateway, op.Queued(name, entry.seq, entry.arrived_ms, since))

    def home(self, entry: Entry) -> str:
        """Return the replica the entry's session is bound to, "" when it is bound to none."""
        return self.homes.of(entry.ticket.session, self.state.now_ms)

    # Adoption

    def adopt_lease(self, held: op.Hold) -> None:
        """Take a lease on its owner's word, also above a budget; nothing starts until below."""
        state, ticket = self.state, held.ticket
        if ticket.ticket_id in state.entries:
            return
        if held.replica_id not in state.replicas:
            state.replicas[held.replica_id] = Replica(
                held.replica_id, ticket.pool, 0, 0, 0, accepts=False
            )
            state.count_fleet()
        entry = Entry(
            ticket, self.caller, held.seq, held.arrived_ms, held.arrived_ms + ticket.ttl_ms,
            held.ageing_since_ms,
        )  # fmt: skip
        entry.started_ms = held.started_ms
        entry.rank_ms = state.rank(entry)
        state.seq = max(state.seq, held.seq)
        state.enter(entry)
        state.hold(entry, held.replica_id, held.charge, reads=held.is_reading)
        self.quotas.take(ticket.charges, state.now_ms, again=True)

    def adopt_queued(self, wait: op.Wait) -> None:
        """Take a waiting ticket back with its rank, at its old place in its key's queue."""
        state, ticket = self.state, wait.ticket
        if ticket.ticket_id in state.entries:
            return
        state.seq = max(state.seq, wait.seq)
        self.quotas.take(ticket.charges, state.now_ms, again=True)
        self.take_in(
            Entry(
                ticket,
                self.caller,
                wait.seq,
                wait.arrived_ms,
                wait.arrived_ms + ticket.ttl_ms,
                wait.ageing_since_ms,
            )
        )

    # Timeouts

    def overdue(self, most: int) -> list[Entry]:
        """Return the queued tickets whose time is up, then those no replica will ever take."""
        state = self.state
        late = state.late(most)
        dead = [
            pool
            for pool, down_ms in state.down_since_ms.items()
            if state.now_ms - down_ms >= state.rules.no_replica_ms
        ]
        if not dead:
            return late
        hopeless = [
            e
            for e in state.entries.values()
            if e.ticket.pool in dead
            and not e.replica_id
            and e.deadline_ms > state.now_ms
            and state.now_ms - e.arrived_ms >= state.rules.no_replica_ms
        ]
        hopeless.sort(key=lambda e: (e.ticket.pool, e.arrived_ms, e.seq))
        return (late + hopeless)[:most]

    def evict(self, entry: Entry) -> None:
        """Put a ticket out whose time is up; its place is kept."""
        state, ticket = self.state, entry.ticket
        retry = self._retry_after_timeout(ticket)
        place = self._keep_place(ticket, entry.seq, entry.ageing_since_ms, retry)
        is_down = ticket.pool in state.down_since_ms
        self.drop_queued(entry)
        code, outcome = (
            ("no_replica", Outcome.EVICTED_NO_REPLICA)
            if is_down
            else ("queue_timeout", Outcome.EVICTED_TIMED_OUT)
        )
        self._tell(entry.gateway, op.Turned(ticket.ticket_id, code, outcome, retry, place))
