"""Starts what may start: the pick of docs/scheduler.md carried out on the memory ledger's state.

Rule 1: a start happens here and nowhere else, and only if every rule of admission holds.
Rule 2: a ticket passed over only for its size is remembered, and at its bound it reserves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.core import sharing
from gateway.core.placing import (
    LONGEST_BYPASS_MS,
    MOST_BYPASSED,
    Fit,
    Reservations,
    Wish,
    place,
    place_alone,
    reserve,
)
from gateway.core.ranking import Head, pick
from gateway.core.types import Blocker, ServiceClass
from gateway.ledger.state import BATCH, INTERACTIVE, Entry, LedgerState

#: Big tickets looked past in one pick; the script of the Redis ledger has the same bound.
MOST_SET_ASIDE: Final = 16

#: For starts that nothing stands before; never written to.
NOTHING_RESERVED: Final = Reservations()

Home = Callable[[Entry], str]  # the replica an entry's session is bound to, "" when none


@dataclass(slots=True)
class Dispatcher:
    """Picks and starts; tells whom it started through `on_start`."""

    state: LedgerState
    home: Home
    on_start: Callable[[Entry], None]

    def run(self) -> None:
        """Start tickets in every pool until nothing more may start."""
        if not self.state.flows:
            return
        for pool in sorted(self.state.pools):
            while self._start_one(pool):
                pass

    def start_at_once(self, entry: Entry) -> bool:
        """Start a new ticket that fits now while nobody at all is queued; it needs no pick."""
        state = self.state
        if state.flows or not state.has_own_room(entry):
            return False
        fit = self.fit(entry, NOTHING_RESERVED)
        if fit.replica_id:
            if entry.ageing_since_ms is None and state.window_size(entry.user) > 0:
                entry.ageing_since_ms = state.now_ms
            self._hold(entry, fit.replica_id)
            return True
        return False

    def _start_one(self, pool: str) -> bool:
        state = self.state
        if not any(r.in_flight < r.slots_now for r in state.up.get(pool, ())):
            return False
        if state.is_all_kept(pool):
            return False
        interactive, batch = self._heads(pool, INTERACTIVE), self._heads(pool, BATCH)
        if not interactive and not batch:
            return False
        reserved = Reservations()
        aside: list[Entry] = []
        while len(aside) < MOST_SET_ASIDE:
            fits: dict[str, Fit] = {a.ticket.ticket_id: Fit() for a in aside}

            def admissible(head: Head, fits: dict[str, Fit] = fits) -> bool:
                if head.ticket_id not in fits:
                    fits[head.ticket_id] = self.fit(state.entries[head.ticket_id], reserved)
                fit = fits[head.ticket_id]
                return bool(fit.replica_id) or fit.big

            choice = pick(state.now_ms, interactive, batch, admissible, state.rules.handicap_ms)
            if choice is None:
                return False
            entry, fit = state.entries[choice.ticket_id], fits[choice.ticket_id]
            if fit.replica_id:
                self._start(entry, fit.replica_id)
                self._remember(aside)
                return True
            aside.append(entry)
            if self._is_at_bound(entry):
                up = state.up.get(pool, [])
                reserve(self._wish(entry), up, fit.blocker or Blocker.SLOTS, reserved)
        return False

    def _heads(self, pool: str, service_class: ServiceClass) -> list[Head]:
        state, heads = self.state, []
        for (where, cls, user_id), flow in state.flows.items():
            if where != pool or cls is not service_class:
                continue
            entry = state.head(flow)
            if entry is not None:
                service = state.service.get(entry.user, 0)
                since = entry.ageing_since_ms
                heads.append(Head(entry.ticket.ticket_id, user_id, cls, since, entry.seq, service))
        return heads

    def fit(self, entry: Entry, reserved: Reservations) -> Fit:
        """Return where the entry may start now, given that its own caps have room for it."""
        state, ticket = self.state, entry.ticket
        up = state.up.get(ticket.pool)
        if up is None:
            return Fit(blocker=Blocker.NO_REPLICA)
        if ticket.service_class is BATCH:
            limit = state.batch_limit(ticket.pool)
            if state.batch_in_flight.get(ticket.pool, 0) + ticket.weight > limit:
                return Fit(blocker=Blocker.BATCH_POOL, big=ticket.weight > 1)
            if reserved.batch:
                return Fit(blocker=Blocker.BATCH_POOL)
        kept_for = state.pools[ticket.pool].reserved
        if kept_for and state.is_kept(ticket.pool, ticket.weight, ticket.group):
            return Fit(blocker=Blocker.RESERVED)
        if len(up) == 1:
            return place_alone(ticket.weight, ticket.prefill_tokens, up[0], reserved)
        fit = place(self._wish(entry), up, reserved)
        if fit.home_is_full and entry.pick_since_ms is None:
            entry.pick_since_ms = state.now_ms
        return fit

    def _wish(self, entry: Entry) -> Wish:
        ticket, waits_since = entry.ticket, entry.pick_since_ms
        may_wait = ticket.home_wait_ms > 0 and (
            waits_since is None or self.state.now_ms - waits_since < ticket.home_wait_ms
        )
        return Wish(
            weight=ticket.weight,
            prefill_tokens=ticket.prefill_tokens,
            order=ticket.replica_order if ticket.session else (),
            home=self.home(entry) if ticket.session else "",
            may_wait_for_home=may_wait,
            avoid=entry.avoid,
        )

    def _is_at_bound(self, entry: Entry) -> bool:
        if entry.bypassed >= MOST_BYPASSED:
            return True
        first = entry.first_bypass_ms
        return first is not None and self.state.now_ms - first >= LONGEST_BYPASS_MS

    def _remember(self, aside: list[Entry]) -> None:
        for entry in aside:
            entry.bypassed += 1
            if entry.first_bypass_ms is None:
                entry.first_bypass_ms = self.state.now_ms

    def _start(self, entry: Entry, replica_id: str) -> None:
        self.state.unqueue(entry)
        self._hold(entry, replica_id)

    def _hold(self, entry: Entry, replica_id: str) -> None:
        state, ticket = self.state, entry.ticket
        entry.rank_ms = state.rank(entry)
        entry.started_ms = state.now_ms
        output = sharing.output_estimate(
            ticket.output_tokens, state.completion_average.get(entry.flow)
        )
        user = state.users.get(entry.user)
        charge = sharing.charge(ticket.prefill_tokens, output, user.share if user else 1)
        state.hold(entry, replica_id, charge, reads=True)
        self.on_start(entry)
