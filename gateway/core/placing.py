"""Decides whether a ticket may start now, and on which replica.

Rule 1: nothing here changes anything; the caller starts the ticket or leaves it.
Rule 2: a ticket that only its size keeps waiting (a long prompt, several sequences) is `big`:
smaller ones may pass it, but not for ever. At its bound it reserves the replica it will fit
first, and the reservation is made anew at every pick, so that it can never outlive its ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.core.affinity import load_bound
from gateway.core.types import Blocker

#: A prompt this long counts as long; a replica reads one of them at a time.
LONG_PROMPT = 4096
#: How many smaller tickets may pass a big one, and for how long.
MOST_BYPASSED = 8
LONGEST_BYPASS_MS = 20_000


@dataclass(slots=True)
class Replica:
    """One engine server as the ledger counts it."""

    replica_id: str
    pool: str
    slots: int  # what the books allow
    prefill_budget: int
    slots_now: int  # lowered by the brake
    accepts: bool = True
    affine: bool = True
    in_flight: int = 0
    prefill: int = 0  # tokens being read
    long_prompts: int = 0

    def has_slots(self, weight: int) -> bool:
        """Rule 4: the ticket's sequences fit beside those in flight."""
        return self.in_flight + weight <= self.slots_now

    def prefill_cost(self, tokens: int) -> int:
        """Return what a prompt takes of the budget; one larger than that takes all of it."""
        return min(tokens, max(1, self.prefill_budget))

    def has_prefill(self, tokens: int) -> bool:
        """Rule 5: the prompt fits the budget, and at most one long prompt is being read."""
        if tokens == 0:
            return True
        if tokens >= LONG_PROMPT and self.long_prompts:
            return False
        return self.prefill + self.prefill_cost(tokens) <= max(1, self.prefill_budget)


@dataclass(slots=True)
class Reservations:
    """What big tickets at their bound keep free during one pick."""

    prefill: set[str] = field(default_factory=set)  # replicas where no other prompt starts
    slots: set[str] = field(default_factory=set)  # replicas where nothing else starts
    batch: bool = False  # no other batch ticket starts in the pool

    def keep_out(self, replica: Replica, tokens: int) -> Blocker | None:
        """Return why somebody else's reservation forbids a start here."""
        if replica.replica_id in self.slots:
            return Blocker.SLOTS
        if tokens and replica.replica_id in self.prefill:
            return Blocker.PREFILL
        return None


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a ticket may start, or what blocks it."""

    replica_id: str = ""
    blocker: Blocker | None = None
    big: bool = False  # only its size blocks it
    home_is_full: bool = False  # it waits for the replica that has its session's cache


@dataclass(frozen=True, slots=True)
class Wish:
    """What the choice of a replica depends on, besides the replicas."""

    weight: int
    prefill_tokens: int
    order: Sequence[str]  # rendezvous order, "" or stale names do no harm
    home: str = ""  # the replica its session is bound to
    may_wait_for_home: bool = False
    avoid: str = ""  # a replica that failed it


def place(wish: Wish, replicas: Sequence[Replica], reserved: Reservations) -> Fit:
    """Return where the ticket starts now: its home, else the first that has room in its order."""
    up = [r for r in replicas if r.accepts]
    if wish.avoid and len(up) > 1:
        up = [r for r in up if r.replica_id != wish.avoid]
    if not up:
        return Fit(blocker=Blocker.NO_REPLICA)
    refusals = {r.replica_id: _refusal(wish, r, reserved) for r in up}
    ordered = in_order(wish.order, up)
    fitting = [r for r in ordered if refusals[r.replica_id] is None]
    if not fitting:
        return _blocked(wish, up, list(refusals.values()))
    bound = load_bound(sum(r.in_flight for r in up), wish.weight, len(up))
    home = next((r for r in up if r.replica_id == wish.home and r.affine), None)
    if home is not None and home.in_flight + wish.weight <= bound:
        if refusals[home.replica_id] is None:
            return Fit(replica_id=home.replica_id)
        if wish.may_wait_for_home:
            return Fit(blocker=Blocker.SLOTS, home_is_full=True)
    within = [r for r in fitting if r.in_flight + wish.weight <= bound]
    return Fit(replica_id=(within or fitting)[0].replica_id)


def in_order(order: Sequence[str], up: Iterable[Replica]) -> list[Replica]:
    """Return the replicas as the session prefers them; without a session, the emptiest first.

    The order was made when the ticket came: replicas gone since are skipped, newer ones follow.
    """
    if not order:
        return sorted(up, key=lambda r: (r.in_flight, r.replica_id))
    place_of = {name: i for i, name in enumerate(order)}
    return sorted(up, key=lambda r: (place_of.get(r.replica_id, len(place_of)), r.replica_id))


def _refusal(wish: Wish, replica: Replica, reserved: Reservations) -> Blocker | None:
    if not replica.has_slots(wish.weight):
        braked = replica.in_flight + wish.weight <= replica.slots
        return Blocker.KV if braked else Blocker.SLOTS
    kept = reserved.keep_out(replica, wish.prefill_tokens)
    if kept is not None:
        return kept
    return None if replica.has_prefill(wish.prefill_tokens) else Blocker.PREFILL


def _blocked(wish: Wish, up: Sequence[Replica], refusals: Sequence[Blocker | None]) -> Fit:
    """Name the blocker: prefill before the brake before slots, since most nearly free."""
    for blocker in (Blocker.PREFILL, Blocker.KV):
        if blocker in refusals:
            break
    else:
        blocker = Blocker.SLOTS
    return Fit(blocker=blocker, big=blocker is Blocker.PREFILL or wish.weight > 1)


def reserve(wish: Wish, up: Sequence[Replica], blocker: Blocker, reserved: Reservations) -> None:
    """Keep the replica free that will fit the big ticket soonest.

    Nothing else starts there (for a prompt: nothing else that must be read), so it only becomes
    better, and the choice made at the next pick is this one or one that is better still.
    """
    if blocker is Blocker.BATCH_POOL:
        reserved.batch = True
        return
    free = [
        r
        for r in up
        if r.accepts
        and r.slots_now >= wish.weight
        and r.replica_id not in reserved.slots
        and r.replica_id not in reserved.prefill
    ]
    if not free:
        return
    if blocker is Blocker.PREFILL:
        ready = [r for r in free if r.has_slots(wish.weight)] or free
        reserved.prefill.add(min(ready, key=lambda r: (r.prefill, r.replica_id)).replica_id)
    else:
        best = min(free, key=lambda r: (r.in_flight - r.slots_now, r.replica_id))
        reserved.slots.add(best.replica_id)
