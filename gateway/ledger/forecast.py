"""Says where everybody stands: position, reason for waiting, expected wait.

The future is found by running the real pick on a copy of the ledger, each running ticket ending
after the time such tickets took lately. So the place shown to a person is the place the scheduler
would give, not a second opinion about it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace

from gateway.core.placing import Reservations
from gateway.core.types import Blocker, Holding, LedgerView, ServiceClass, Standing, Ticket
from gateway.ledger.desk import DEFAULT_HOLD_MS
from gateway.ledger.dispatch import Dispatcher
from gateway.ledger.interface import KeyPolicy, UserPolicy
from gateway.ledger.state import Entry, Flow, LedgerState, add

#: Work of one look ahead, in tickets at the head of a flow that are compared: a tenth of a
#: second. What starts later is told by the pace until then.
MOST_COMPARED = 12_000
#: Starts after some wait that make a pace.
LEAST_STARTS = 8
NEWCOMER = "(newcomer)"  # no real id has brackets
FOREVER_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Expectation:
    """When a queued ticket should start, seen from now; None: nobody can say."""

    position: int
    wait_ms: int | None


NO_OUTLOOK = Expectation(0, None)


def view(state: LedgerState, homes: dict[str, str], *, is_open: bool) -> LedgerView:
    """Return the whole picture of a ledger, queued tickets in their expected order."""
    picture = _picture(state, homes, expectations(state, homes), is_open=is_open)
    waits = {cls: newcomer_waits(state, homes, cls) for cls in ServiceClass} if is_open else {}
    return replace(
        picture,
        newcomer_wait_ms={
            pool: {cls.value: found[pool] for cls, found in waits.items()}
            for pool in (state.pools if is_open else ())
        },
    )


def glance(state: LedgerState, homes: dict[str, str], *, is_open: bool) -> LedgerView:
    """Return the picture without looking ahead: who runs, who waits and for what.

    Playing the ledger forward costs a second with a full queue; this costs milliseconds.
    """
    return _picture(state, homes, {}, is_open=is_open)


def _picture(
    state: LedgerState, homes: dict[str, str], expected: dict[str, Expectation], *, is_open: bool
) -> LedgerView:
    queued = [e for e in state.entries.values() if not e.replica_id]
    blockers = attribute(state, homes, is_open=is_open)
    standings = [_standing(state, e, expected, blockers) for e in queued]
    running = [
        Holding(
            e.ticket.ticket_id, e.ticket.key_id, e.ticket.user_id, e.ticket.service_class,
            e.ticket.pool, e.replica_id, e.ticket.weight, max(0, state.now_ms - e.started_ms),
        )
        for e in state.entries.values()
        if e.replica_id
    ]  # fmt: skip
    return LedgerView(
        now_ms=state.now_ms,
        open=is_open,
        queued=tuple(sorted(standings, key=lambda s: (s.pool, s.position))),
        running=tuple(running),
        batch_limit={pool: state.batch_limit(pool) for pool in state.pools},
        borrowed={
            pool: state.is_lent(pool) and state.batch_in_flight.get(pool, 0) > 0
            for pool in state.pools
        },
    )


def newcomer_waits(
    state: LedgerState, homes: dict[str, str], service_class: ServiceClass
) -> dict[str, int | None]:
    """Return how long a first ticket of somebody new would wait, by pool; None: nobody can say."""
    future, names = copy(state), {pool: f"{NEWCOMER} {pool}" for pool in state.pools}
    for pool, name in names.items():
        entry = Entry(
            Ticket(name, name, name, service_class, pool), name, future.seq + 1, future.now_ms,
            future.now_ms + FOREVER_MS, future.now_ms,
        )  # fmt: skip
        future.seq += 1
        future.keys[entry.key] = KeyPolicy(name, 0, True, 1, 1, True, service_class)
        future.users[entry.user] = UserPolicy(name, service_class, 0, None, 1)
        future.enter(entry)
        future.queue(entry)
    found = _Play(future, homes).run(set(names.values()))
    return {pool: found[name].wait_ms for pool, name in names.items()}


def _standing(
    state: LedgerState,
    entry: Entry,
    expected: dict[str, Expectation],
    blockers: dict[str, Blocker],
) -> Standing:
    ticket, rank = entry.ticket, state.rank(entry)
    outlook = expected.get(ticket.ticket_id, NO_OUTLOOK)
    return Standing(
        ticket_id=ticket.ticket_id,
        key_id=ticket.key_id,
        user_id=ticket.user_id,
        service_class=ticket.service_class,
        pool=ticket.pool,
        position=outlook.position,
        queued_ms=state.now_ms - entry.arrived_ms,
        rank_ms=rank,
        effective_priority_ms=state.now_ms - rank,
        ageing_starts_ms=entry.ageing_since_ms,
        blocker=blockers[ticket.ticket_id],
        expected_wait_ms=outlook.wait_ms,
    )


def expectations(state: LedgerState, homes: dict[str, str]) -> dict[str, Expectation]:
    """Return when each queued ticket should start, by playing the ledger forward."""
    return _Play(copy(state), homes).run()


class _Play:
    """One future of a ledger, played on a state that is thrown away."""

    def __init__(self, future: LedgerState, homes: dict[str, str]) -> None:
        self._future = future
        self._began_ms = future.now_ms
        self._ends: list[tuple[int, str]] = []
        self._found: dict[str, Expectation] = {}
        self._places: Counter[str] = Counter()
        self._paces: dict[tuple[str, ServiceClass], tuple[int, int]] = {}  # starts, last of them
        self._compared = 0
        self._dispatcher = Dispatcher(
            future, lambda e: homes.get(e.ticket.session, ""), self._started
        )

    def run(self, wanted: set[str] | None = None) -> dict[str, Expectation]:
        """Play until all that wait have started, or those who are wanted, or it was enough."""
        future, now = self._future, self._began_ms
        for entry in future.entries.values():
            if entry.replica_id:
                # Measured: the mean left given its age is no better a guess than this, whose
                # error is that of the mean itself (tests/gateway/fleet/test_expected_wait.py).
                hold = self._hold_ms(entry)
                left = max(hold - (now - entry.started_ms), hold // 4)
                heapq.heappush(self._ends, (now + left, entry.ticket.ticket_id))
        self._dispatch()
        while self._ends and future.flows and self._compared < MOST_COMPARED:
            if wanted is not None and wanted <= self._found.keys():
                break
            future.now_ms, name = heapq.heappop(self._ends)
            ended = future.entries[name]
            future.unhold(ended)
            future.leave(ended)
            self._dispatch()
        self._tell_the_rest()
        return self._found

    def _dispatch(self) -> None:
        before = len(self._found)
        self._compared += len(self._future.flows)
        self._dispatcher.run()
        self._compared += (len(self._found) - before) * len(self._future.flows)

    def _hold_ms(self, entry: Entry) -> int:
        kind = (entry.ticket.pool, entry.ticket.service_class)
        return self._future.hold_average.get(kind, DEFAULT_HOLD_MS)

    def _started(self, entry: Entry) -> None:
        ticket, now = entry.ticket, self._future.now_ms
        kind, wait = (ticket.pool, ticket.service_class), now - self._began_ms
        self._places[ticket.pool] += 1
        if wait:
            self._paces[kind] = (self._paces.get(kind, (0, 0))[0] + 1, wait)
        known = kind in self._future.hold_average or wait == 0
        place = self._places[ticket.pool]
        self._found[ticket.ticket_id] = Expectation(place, wait if known else None)
        heapq.heappush(self._ends, (now + self._hold_ms(entry), ticket.ticket_id))

    def _tell_the_rest(self) -> None:
        """Give those that have not started the places behind, and a wait at the pace until then.

        Flows take turns, so somebody's second ticket comes behind everybody's first. What nothing
        now running will let start has no wait, and neither has what starts at no known pace.
        """
        rest = [e for e in self._future.entries.values() if not e.replica_id]
        turns: Counter[tuple[str, ServiceClass, str]] = Counter()
        order: list[tuple[int, int, int, Entry]] = []
        for entry in sorted(rest, key=lambda e: e.seq):
            turns[entry.flow] += 1
            order.append((turns[entry.flow], self._future.rank(entry), entry.seq, entry))
        waits: Counter[tuple[str, ServiceClass]] = Counter()
        is_cut = bool(self._ends) and self._compared >= MOST_COMPARED
        for _, _, _, entry in sorted(order):
            kind = (entry.ticket.pool, entry.ticket.service_class)
            waits[kind] += 1
            self._places[entry.ticket.pool] += 1
            starts, span = self._paces.get(kind, (0, 0))
            is_paced = is_cut and starts >= LEAST_STARTS and kind in self._future.hold_average
            wait = span + span * waits[kind] // starts if is_paced else None
            place = self._places[entry.ticket.pool]
            self._found[entry.ticket.ticket_id] = Expectation(place, wait)


def copy(state: LedgerState) -> LedgerState:
    """Return a state that can be played with; tickets and policies are shared, being frozen."""
    twin = LedgerState(state.rules)
    for name in dir(state):  # compiled there is no __dict__ to go through
        value = getattr(state, name)
        if not (name.startswith("_") or callable(value)):
            setattr(twin, name, value.copy() if hasattr(value, "copy") else value)
    twin.entries = {name: entry.copy() for name, entry in state.entries.items()}
    twin.replicas = {name: replace(replica) for name, replica in state.replicas.items()}
    twin.count_fleet()
    twin.flows = {
        flow_id: Flow(
            {
                key: [twin.entries[e.ticket.ticket_id] for e in queue]
                for key, queue in flow.queues.items()
            }
        )
        for flow_id, flow in state.flows.items()
    }
    return twin


def attribute(state: LedgerState, homes: dict[str, str], *, is_open: bool) -> dict[str, Blocker]:
    """Name the one thing that keeps each queued ticket from running now.

    A ticket its own caps would hold back even on an empty card is blocked by those, whatever else
    is full; only the others say something about the card.
    """
    fitter = Dispatcher(copy(state), lambda e: homes.get(e.ticket.session, ""), lambda _: None)
    blockers: dict[str, Blocker] = {}
    for flow in fitter.state.flows.values():
        capped = _capped(fitter.state, flow)
        for entry in flow.oldest_first():
            name = entry.ticket.ticket_id
            if name in capped:
                blockers[name] = Blocker.OWN_CAP
            elif not is_open:
                blockers[name] = Blocker.SCHEDULER
            else:
                blockers[name] = fitter.fit(entry, Reservations()).blocker or Blocker.SLOTS
    return blockers


def _capped(state: LedgerState, flow: Flow) -> set[str]:
    """Return the tickets that could not run on an empty card either, for their own caps."""
    shut: set[str] = set()
    capped: set[str] = set()
    would_run: list[Entry] = []
    for entry in flow.oldest_first():
        if entry.ticket.key_id in shut or not state.has_own_room(entry):
            capped.add(entry.ticket.ticket_id)
            shut.add(entry.ticket.key_id)
            continue
        would_run.append(entry)
        add(state.key_in_flight, entry.key, entry.ticket.weight)
        add(state.user_in_flight, entry.user, entry.ticket.weight)
    for entry in would_run:
        add(state.key_in_flight, entry.key, -entry.ticket.weight)
        add(state.user_in_flight, entry.user, -entry.ticket.weight)
    return capped
