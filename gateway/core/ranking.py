"""Decides the order in which waiting tickets start.

Rule 1: a ticket's rank is the instant it began to age plus its class's handicap. It is set once
and never changes, so the order of two waiting tickets never changes either.
Rule 2: within a class the flow that used least goes first; an aged batch ticket goes before every
interactive ticket that is younger than its age minus the handicap, and before no older one.
Rule 3: no clock and no I/O: the instant is handed in, times are whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gateway.core.types import ServiceClass

#: How much later than they came batch tickets stand; §3 of docs/scheduler.md.
BATCH_HANDICAP_MS = 600_000
_BATCH: Final = ServiceClass.BATCH


def rank(ageing_since_ms: int, service_class: ServiceClass, handicap_ms: int) -> int:
    """Return the number that orders the queue; the smallest goes first.

    Both classes age one second per second, so this stays constant while they wait: a batch
    ticket stands as if it had arrived ten minutes later.
    """
    return ageing_since_ms + (handicap_ms if service_class is _BATCH else 0)


@dataclass(frozen=True, slots=True)
class Head:
    """The ticket that speaks for a flow: the oldest of its keys' heads that has room."""

    ticket_id: str
    user_id: str
    service_class: ServiceClass
    ageing_since_ms: int | None  # None: outside the accrual window, ages not yet
    seq: int
    service: int  # V, what this user has had of the class, in milli-tokens

    def order(self, now_ms: int, handicap_ms: int) -> tuple[int, int, int]:
        """Return (rank, start of ageing, sequence); a ticket outside the window stands as new."""
        since = now_ms if self.ageing_since_ms is None else self.ageing_since_ms
        return (rank(since, self.service_class, handicap_ms), since, self.seq)

    def fairness(self, now_ms: int, handicap_ms: int) -> tuple[int, int, int]:
        """Return what orders the flows of one class: least service, then rank, then sequence.

        A ticket outside its window comes after all that age, so that the order of two waiting
        tickets does not depend on the instant at which they are compared.
        """
        if self.ageing_since_ms is None:
            return (self.service, _NEVER, self.seq)
        return (self.service, self.order(now_ms, handicap_ms)[0], self.seq)


_NEVER: Final = 10**15


def pick(
    now_ms: int,
    interactive: Iterable[Head],
    batch: Iterable[Head],
    admissible: Callable[[Head], bool],
    handicap_ms: int = BATCH_HANDICAP_MS,
) -> Head | None:
    """Return the head that starts next, or None when none may.

    First the batch candidate: the smallest rank among those that have waited out the handicap,
    else the one of least service. Then every admissible interactive head that stands before the
    candidate is eligible, and the eligible one of least service starts; without any, the
    candidate does. (Comparing the fair winners of both classes instead would let an aged batch
    ticket pass an interactive one that is older than it.)
    """
    candidate = _batch_candidate(now_ms, list(batch), admissible, handicap_ms)
    bar = candidate.order(now_ms, handicap_ms) if candidate else None
    for head in sorted(interactive, key=lambda h: h.fairness(now_ms, handicap_ms)):
        stands_before = bar is None or head.order(now_ms, handicap_ms) < bar
        if stands_before and admissible(head):
            return head
    return candidate


def _batch_candidate(
    now_ms: int, batch: list[Head], admissible: Callable[[Head], bool], handicap_ms: int
) -> Head | None:
    aged = [h for h in batch if _has_aged(h, now_ms, handicap_ms)]
    for head in sorted(aged, key=lambda h: h.order(now_ms, handicap_ms)):
        if admissible(head):
            return head
    fresh = [h for h in batch if not _has_aged(h, now_ms, handicap_ms)]
    for head in sorted(fresh, key=lambda h: h.fairness(now_ms, handicap_ms)):
        if admissible(head):
            return head
    return None


def _has_aged(head: Head, now_ms: int, handicap_ms: int) -> bool:
    return head.ageing_since_ms is not None and now_ms - head.ageing_since_ms >= handicap_ms


def window(ageing: Iterable[bool], places: int) -> list[int]:
    """Return which of a batch flow's tickets (oldest first) begin to age now.

    Only the `places` oldest of a flow gain age, so that whoever queues a thousand at once has a
    thousandth of them ageing. A ticket that has begun keeps its age, also when an older one
    comes back in front of it.
    """
    return [i for i, is_ageing in enumerate(ageing) if i < places and not is_ageing]
