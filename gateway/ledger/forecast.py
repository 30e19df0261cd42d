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
from gateway.ledger.state import Entry, Flow, LedgerState

#: Starts looked ahead; beyond it a wait is unknown rather than slow to find out.
FARTHEST = 2_000
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
    return replace(
        picture,
        newcomer_wait_ms={
            pool: {cls.value: newcomer_wait(state, homes, pool, cls) for cls in ServiceClass}
            for pool in state.pools
            if is_open
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
            pool: state.is_lent(pool) and state.batch_in_flight[pool] > 0 for pool in state.pools
        },
    )


def newcomer_wait(
    state: LedgerState, homes: dict[str, str], pool: str, service_class: ServiceClass
) -> int | None:
    """Return how long a first ticket of somebody new would wait; None: nobody can say."""
    future = copy(state)
    ticket = Ticket(NEWCOMER, NEWCOMER, NEWCOMER, service_class, pool)
    entry = Entry(
        ticket, NEWCOMER, future.seq + 1, future.now_ms, future.now_ms + FOREVER_MS, future.now_ms
    )
    future.keys[entry.key] = KeyPolicy(NEWCOMER, 0, True, 1, 1, True, service_class)
    future.users[entry.user] = UserPolicy(NEWCOMER, service_class, 0, None, 1)
    future.enter(entry)
    future.queue(entry)
    return expectations(future, homes)[NEWCOMER].wait_ms


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
    future = copy(state)
    now, ends, found = state.now_ms, list[tuple[int, str]](), dict[str, Expectation]()
    places: Counter[str] = Counter()

    def hold_ms(entry: Entry) -> int:
        kind = (entry.ticket.pool, entry.ticket.service_class)
        return state.hold_average.get(kind, DEFAULT_HOLD_MS)

    def started(entry: Entry) -> None:
        places[entry.ticket.pool] += 1
        wait = future.now_ms - now
        kind = (entry.ticket.pool, entry.ticket.service_class)
        known = kind in state.hold_average or wait == 0
        name = entry.ticket.ticket_id
        found[name] = Expectation(places[entry.ticket.pool], wait if known else None)
        heapq.heappush(ends, (future.now_ms + hold_ms(entry), name))

    dispatcher = Dispatcher(future, lambda e: homes.get(e.ticket.session, ""), started)
    for entry in future.entries.values():
        if entry.replica_id:
            left = max(hold_ms(entry) - (now - entry.started_ms), hold_ms(entry) // 4)
            heapq.heappush(ends, (now + left, entry.ticket.ticket_id))
    dispatcher.run()
    while ends and future.flows and len(found) < FARTHEST:
        future.now_ms, name = heapq.heappop(ends)
        ended = future.entries[name]
        future.unhold(ended)
        future.leave(ended)
        dispatcher.run()
    _without_outlook(future, places, found)
    return found


def _without_outlook(
    future: LedgerState, places: Counter[str], found: dict[str, Expectation]
) -> None:
    """Give those that nothing now running will let start the places behind, by rank."""
    rest = [e for e in future.entries.values() if not e.replica_id]
    for entry in sorted(rest, key=lambda e: (future.rank(e), e.seq)):
        places[entry.ticket.pool] += 1
        found[entry.ticket.ticket_id] = Expectation(places[entry.ticket.pool], None)


def copy(state: LedgerState) -> LedgerState:
    """Return a state that can be played with; tickets and policies are shared, being frozen."""
    twin = LedgerState(state.rules)
    for name in vars(state):
        value = getattr(state, name)
        setattr(twin, name, value.copy() if hasattr(value, "copy") else value)
    twin.entries = {name: replace(entry) for name, entry in state.entries.items()}
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
        state.key_in_flight[entry.key] += entry.ticket.weight
        state.user_in_flight[entry.user] += entry.ticket.weight
    for entry in would_run:
        state.key_in_flight[entry.key] -= entry.ticket.weight
        state.user_in_flight[entry.user] -= entry.ticket.weight
    return capped
