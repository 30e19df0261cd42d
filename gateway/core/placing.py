"""Decides whether a ticket may start now, and on which replica.

Rule 1: nothing here changes anything; the caller starts the ticket or leaves it.
Rule 2: a ticket that only its size keeps waiting (a long prompt, several sequences) is `big`:
smaller ones may pass it, but not for ever. At its bound it reserves the replica it will fit
first, and the reservation is made anew at every pick, so that it can never outlive its ticket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.core.affinity import load_bound
from gateway.core.types import Blocker

#: A prompt this long counts as long; a replica reads one of them at a time.
LONG_PROMPT: Final = 4096
#: How many smaller tickets may pass a big one, and for how long.
MOST_BYPASSED: Final = 8
LONGEST_BYPASS_MS: Final = 20_000


@dataclass(slots=True)
class Reservations:
    """What big tickets at their bound keep free during one pick."""

    prefill: set[str] = field(default_factory=set)  # replicas where no other prompt starts
    slots: set[str] = field(default_factory=set)  # replicas where nothing else starts
    batch: bool = False  # no other batch ticket starts in the pool


class Fit:
    """Where a ticket may start, or what blocks it."""

    __slots__ = ("big", "blocker", "home_is_full", "replica_id")

    def __init__(
        self,
        replica_id: str = "",
        blocker: Blocker | None = None,
        big: bool = False,  # only its size blocks it
        home_is_full: bool = False,  # it waits for the replica that has its session's cache
    ) -> None:
        self.replica_id: Final = replica_id
        self.blocker: Final = blocker
        self.big: Final = big
        self.home_is_full: Final = home_is_full


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
    here: Fit = field(init=False, repr=False)

    def __post_init__(self) -> None:
        #: The answer "here", made once.
        self.here = Fit(self.replica_id)

    def has_slots(self, weight: int) -> bool:
        """Rule 4: the ticket's sequences fit beside those in flight."""
        return self.in_flight + weight <= self.slots_now

    def refusal(self, weight: int, tokens: int, reserved: Reservations) -> Blocker | None:
        """Return why a ticket may not start here now."""
        wanted = self.in_flight + weight
        if wanted > self.slots_now:
            return Blocker.KV if wanted <= self.slots else Blocker.SLOTS
        if self.replica_id in reserved.slots:
            return Blocker.SLOTS
        if tokens and self.replica_id in reserved.prefill:
            return Blocker.PREFILL
        return None if self.has_prefill(tokens) else Blocker.PREFILL

    def prefill_cost(self, tokens: int) -> int:
        """Return what a prompt takes of the budget; one larger than that takes all of it."""
        budget = self.prefill_budget or 1
        return tokens if tokens < budget else budget

    def has_prefill(self, tokens: int) -> bool:
        """Rule 5: the prompt fits the budget, and at most one long prompt is being read."""
        if tokens >= LONG_PROMPT and self.long_prompts:
            return False
        budget = self.prefill_budget or 1
        return not tokens or self.prefill + (tokens if tokens < budget else budget) <= budget


class Wish:
    """What the choice of a replica depends on, besides the replicas."""

    __slots__ = ("avoid", "home", "may_wait_for_home", "order", "prefill_tokens", "weight")

    def __init__(
        self,
        weight: int,
        prefill_tokens: int,
        order: Sequence[str],  # rendezvous order, "" or stale names do no harm
        home: str = "",  # the replica its session is bound to
        may_wait_for_home: bool = False,
        avoid: str = "",  # a replica that failed it
    ) -> None:
        self.weight: Final = weight
        self.prefill_tokens: Final = prefill_tokens
        self.order: Final = order
        self.home: Final = home
        self.may_wait_for_home: Final = may_wait_for_home
        self.avoid: Final = avoid


def place(wish: Wish, up: Sequence[Replica], reserved: Reservations) -> Fit:
    """Return where the ticket starts now: its home, else the first that has room in its order.

    `up` are the pool's replicas that take work.
    """
    if wish.avoid and len(up) > 1:
        up = [r for r in up if r.replica_id != wish.avoid]
    if not up:
        return Fit(blocker=Blocker.NO_REPLICA)
    tokens = wish.prefill_tokens
    refusals = {r.replica_id: r.refusal(wish.weight, tokens, reserved) for r in up}
    fitting = [r for r in in_order(wish.order, up) if refusals[r.replica_id] is None]
    if not fitting:
        return blocked(wish.weight, list(refusals.values()))
    bound = load_bound(sum(r.in_flight for r in up), wish.weight, len(up))
    home = next((r for r in up if r.replica_id == wish.home and r.affine), None)
    if home is not None and home.in_flight + wish.weight <= bound:
        if refusals[home.replica_id] is None:
            return home.here
        if wish.may_wait_for_home:
            return Fit(blocker=Blocker.SLOTS, home_is_full=True)
    within = [r for r in fitting if r.in_flight + wish.weight <= bound]
    return (within or fitting)[0].here


def place_alone(weight: int, tokens: int, replica: Replica, reserved: Reservations) -> Fit:
    """Return the same where one replica takes work: the commonest house, and nothing to choose."""
    refusal = replica.refusal(weight, tokens, reserved)
    return replica.here if refusal is None else blocked(weight, [refusal])


def in_order(order: Sequence[str], up: Iterable[Replica]) -> list[Replica]:
    """Return the replicas as the session prefers them; without a session, the emptiest first.

    The order was made when the ticket came: replicas gone since are skipped, newer ones follow.
    """
    if not order:
        return sorted(up, key=lambda r: (r.in_flight, r.replica_id))
    place_of = {name: i for i, name in enumerate(order)}
    return sorted(up, key=lambda r: (place_of.get(r.replica_id, len(place_of)), r.replica_id))


def blocked(weight: int, refusals: Sequence[Blocker | None]) -> Fit:
    """Name the blocker: prefill before the brake before slots, since most nearly free."""
    for blocker in (Blocker.PREFILL, Blocker.KV):
        if blocker in refusals:
            break
    else:
        blocker = Blocker.SLOTS
    return Fit(blocker=blocker, big=blocker is Blocker.PREFILL or weight > 1)


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
