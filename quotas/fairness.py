"""How evenly a pool was shared: who had how much of it, who waited, and behind whom.

Rule 1: everything follows from the usage rows of a period; no sampling, nothing estimated.
Rule 2: a person's wait is laid on those who held slots meanwhile, in proportion to the slots they
held; what one's own requests held is laid on oneself.
Rule 3: Jain's index is 1 when all shares are equal and 1/n when one of n has everything. It is of
people who asked for something; who asked for little has a small share by choice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quotas.models import UsageEvent, User
from quotas.reports import Period

MOST_ROWS = 200_000
SHOWN_PAIRS = 50


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it waited and ran; times in seconds."""

    user_id: int
    service_class: str
    pool: str
    arrived_s: float
    started_s: float | None  # None: it never ran
    ended_s: float
    tokens: int  # read without the cached ones, and written


@dataclass(frozen=True, slots=True)
class Part:
    """What one person had of a class."""

    user_id: int
    name: str
    service_class: str
    requests: int
    never_ran: int
    slot_seconds: float
    slot_share: float
    token_share: float
    wait_p50_s: float | None
    wait_p95_s: float | None


@dataclass(frozen=True, slots=True)
class Behind:
    """Seconds one person waited while another held slots."""

    waiter: str
    holder: str
    service_class: str  # of the waiter
    seconds: float


@dataclass(frozen=True, slots=True)
class Fairness:
    """The report of one period."""

    parts: tuple[Part, ...]  # largest share first
    jain_slots: dict[str, float | None]  # by class
    jain_tokens: dict[str, float | None]
    behind: tuple[Behind, ...]  # longest first
    requests: int
    cut: bool  # the period holds more rows than were read: the newest are in

    def as_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """What one person is shown: themselves against the middle of all."""

    slot_share: float
    median_slot_share: float
    wait_p95_s: float | None
    median_wait_p95_s: float | None
    people: int


def jain(shares: Sequence[float]) -> float | None:
    """Return Jain's index of the shares, None when nobody had anything."""
    squares = sum(share * share for share in shares)
    if not squares:
        return None
    return sum(shares) ** 2 / (len(shares) * squares)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that so many do not exceed, None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def who_waited_for_whom(requests: Iterable[Request]) -> dict[tuple[int, str, int], float]:
    """Return seconds by (waiter, class of the waiter, holder), pool by pool."""
    by_pool: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        by_pool[request.pool].append(request)
    found: dict[tuple[int, str, int], float] = defaultdict(float)
    for mine in by_pool.values():
        _lay(mine, found)
    return dict(found)


def _moments(requests: Iterable[Request]) -> Iterator[tuple[float, str, tuple[int, str], int]]:
    """Yield each change: when, to what (waiting or holding), of whom, by how many."""
    for r in requests:
        who = (r.user_id, r.service_class)
        waited_until = r.ended_s if r.started_s is None else r.started_s
        if waited_until > r.arrived_s:
            yield r.arrived_s, "waiting", who, 1
            yield waited_until, "waiting", who, -1
        if r.started_s is not None and r.ended_s > r.started_s:
            yield r.started_s, "holding", who, 1
            yield r.ended_s, "holding", who, -1


def _lay(requests: list[Request], found: dict[tuple[int, str, int], float]) -> None:
    """Walk through time and lay each second of waiting on those who hold slots then."""
    counts: dict[str, dict[tuple[int, str], int]] = {"waiting": {}, "holding": {}}
    before_s = 0.0
    for at_s, what, who, step in sorted(_moments(requests)):
        held = sum(counts["holding"].values())
        if at_s > before_s and held:
            for (waiter, service_class), waiting in counts["waiting"].items():
                for (holder, _), slots in counts["holding"].items():
                    seconds = (at_s - before_s) * waiting * slots / held
                    found[waiter, service_class, holder] += seconds
        before_s = at_s
        now = counts[what].get(who, 0) + step
        if now:
            counts[what][who] = now
        else:
            counts[what].pop(who, None)


def report(requests: Sequence[Request], names: dict[int, str], *, cut: bool = False) -> Fairness:
    """Return the report of these requests."""
    groups: dict[tuple[int, str], list[Request]] = defaultdict(list)
    for request in requests:
        groups[request.user_id, request.service_class].append(request)
    slots = {who: sum(map(_held_s, mine)) for who, mine in groups.items()}
    tokens = {who: sum(r.tokens for r in mine) for who, mine in groups.items()}
    all_slots, all_tokens = sum(slots.values()) or 1.0, sum(tokens.values()) or 1
    parts = [
        Part(
            user_id=who[0],
            name=names.get(who[0], f"user {who[0]}"),
            service_class=who[1],
            requests=len(mine),
            never_ran=sum(r.started_s is None for r in mine),
            slot_seconds=slots[who],
            slot_share=slots[who] / all_slots,
            token_share=tokens[who] / all_tokens,
            wait_p50_s=percentile(_waits(mine), 0.5),
            wait_p95_s=percentile(_waits(mine), 0.95),
        )
        for who, mine in groups.items()
    ]
    classes = sorted({who[1] for who in groups})
    return Fairness(
        parts=tuple(sorted(parts, key=lambda part: -part.slot_share)),
        jain_slots={c: jain([slots[who] for who in groups if who[1] == c]) for c in classes},
        jain_tokens={c: jain([tokens[who] for who in groups if who[1] == c]) for c in classes},
        behind=_behind(requests, names),
        requests=len(requests),
        cut=cut,
    )


def _held_s(request: Request) -> float:
    return 0.0 if request.started_s is None else request.ended_s - request.started_s


def _waits(requests: Iterable[Request]) -> list[float]:
    return [(r.ended_s if r.started_s is None else r.started_s) - r.arrived_s for r in requests]


def _behind(requests: Sequence[Request], names: dict[int, str]) -> tuple[Behind, ...]:
    pairs = [
        Behind(names.get(w, f"user {w}"), names.get(h, f"user {h}"), service_class, seconds)
        for (w, service_class, h), seconds in who_waited_for_whom(requests).items()
        if seconds >= 0.5
    ]
    return tuple(sorted(pairs, key=lambda pair: -pair.seconds)[:SHOWN_PAIRS])


def own_place(found: Fairness, user_id: int, service_class: str) -> OwnPlace | None:
    """Return one person's part against the median of all in their class, None without a part."""
    parts = [part for part in found.parts if part.service_class == service_class]
    mine = next((part for part in parts if part.user_id == user_id), None)
    if mine is None:
        return None
    waits = [part.wait_p95_s for part in parts if part.wait_p95_s is not None]
    return OwnPlace(
        slot_share=mine.slot_share,
        median_slot_share=percentile([part.slot_share for part in parts], 0.5) or 0.0,
        wait_p95_s=mine.wait_p95_s,
        median_wait_p95_s=percentile(waits, 0.5),
        people=len(parts),
    )


def of_period(period: Period, *, model: str | None = None, most: int = MOST_ROWS) -> Fairness:
    """Return the report of a period from the books, its newest `most` rows at least."""
    rows = UsageEvent.objects.filter(arrived_at__gte=period.start, arrived_at__lt=period.end)
    if model is not None:
        rows = rows.filter(model=model)
    columns = (
        "user_id", "service_class", "model", "arrived_at", "queue_wait_ms", "duration_ms",
        "prompt_tokens", "cached_tokens", "completion_tokens", "replica_id",
    )  # fmt: skip
    newest = list(rows.order_by("-arrived_at").values_list(*columns)[: most + 1])
    requests = [_request(*row) for row in newest[:most]]
    people = {request.user_id for request in requests}
    names = dict(User.objects.filter(pk__in=people).values_list("pk", "username"))
    return report(requests, names, cut=len(newest) > most)


def _request(
    user_id: int,
    service_class: str,
    model: str,
    arrived_at: Any,
    wait_ms: int | None,
    duration_ms: int,
    prompt: int,
    cached: int | None,
    completion: int,
    replica_id: str,
) -> Request:
    arrived_s = arrived_at.timestamp()
    ran = bool(replica_id) and wait_ms is not None
    return Request(
        user_id=user_id,
        service_class=service_class,
        pool=model,
        arrived_s=arrived_s,
        started_s=arrived_s + (wait_ms or 0) / 1000 if ran else None,
        ended_s=arrived_s + max(duration_ms, wait_ms or 0) / 1000,
        tokens=prompt - (cached or 0) + completion,
    )
