"""Which counted limits a request draws on, and how much it reserves; pure.

Rule 1: requests and tokens, per minute, day and month, over the key, the person and the group: all
that are set bind together, those of the class the request runs in and no others.
Rule 2: a request reserves the estimate of its prompt plus the longest answer it may get. Where a
limit on tokens binds and the client names no length, the answer may have at most
`UNSTATED_OUTPUT` tokens, and no more than the smallest limit has room for when unused; the engine
is told so. A request can therefore pass a limit only by what its prompt was underestimated.
Rule 3: what could never fit is not made to wait.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import Final

from gateway.core.types import Charge
from quotas.snapshots import counters, windows
from quotas.snapshots.directory import Limits

UNSTATED_OUTPUT: Final = 4_096
#: Limit -> (what it counts, its window).
COUNTED: Mapping[str, tuple[str, str]] = {
    "requests_per_minute": ("requests", "minute"),
    "tokens_per_minute": ("tokens", "minute"),
    "tokens_per_day": ("tokens", "day"),
    "tokens_per_month": ("tokens", "month"),
}


class Counted:
    """One counted limit that binds somebody in one class, until its window ends."""

    __slots__ = (
        "counter", "ends_at_ms", "headers", "in_books", "level", "limit", "name", "per",
        "service_class", "settles", "unit", "window", "window_name",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        per: str,  # key, person, group
        level: str,  # where it was set: everyone, group, user, key
        service_class: str,
        identity: str,
        limit: int,
        window: windows.Window | None,  # None: a minute
    ) -> None:
        self.name = name
        self.per = per
        self.level = level
        self.service_class = service_class
        self.limit = limit
        self.window = window
        self.unit = COUNTED[name][0]  # what it counts: requests or tokens
        self.settles = self.unit == "tokens"
        self.counter = f"{name}|{service_class}|{per}|{identity}"  # apart from the window
        self.window_name = "" if window is None else window.name
        self.ends_at_ms = 0 if window is None else window.end_ms
        #: The name under which the books publish what was used, "" for a minute.
        self.in_books = (
            "" if window is None else counters.field(window.name, service_class, per, identity)
        )
        #: Names of the headers that tell its limit, what remains and when it resets.
        self.headers = (
            b"x-ratelimit-limit-" + self.unit.encode(),
            b"x-ratelimit-remaining-" + self.unit.encode(),
            b"x-ratelimit-reset-" + self.unit.encode(),
        )

    def charge(self, amount: int, floor: int = 0) -> Charge:
        """Return what the ledger is asked to count."""
        return Charge(
            self.counter, self.limit, amount, self.window_name, self.ends_at_ms, floor, self.settles
        )


class Plan:
    """The counted limits of one caller until the first of their windows ends."""

    __slots__ = ("ends_at_ms", "in_books", "least_tokens", "limits")

    def __init__(self, limits: tuple[Counted, ...]) -> None:
        self.limits: Final = limits
        ends = [limit.ends_at_ms for limit in limits if limit.window is not None]
        self.ends_at_ms: Final[float] = min(ends, default=math.inf)
        #: Names of those the books count, too.
        self.in_books: Final = tuple([limit.in_books for limit in limits if limit.in_books])
        of_tokens = [limit.limit for limit in limits if limit.settles]
        #: The smallest of those on tokens, None where there is none.
        self.least_tokens: Final = min(of_tokens, default=None)


def needs_calendar(limits: Limits) -> bool:
    """Tell whether a limit of a day or month binds."""
    return any(
        COUNTED.get(name, ("", ""))[1] in ("day", "month")
        for scope in (limits.key, limits.person, limits.group)
        for name in scope
    )


def counted(
    limits: Limits,
    service_class: str,
    identities: Mapping[str, str],
    now: dt.datetime,
    zone: str,
) -> tuple[Counted, ...]:
    """Return the counted limits that bind; an identity that is empty has none."""
    found = []
    for per, scope in (("key", limits.key), ("person", limits.person), ("group", limits.group)):
        identity = identities.get(per, "")
        for name, (_, kind) in COUNTED.items():
            if name in scope and identity:
                window = None if kind == "minute" else windows.window(kind, now, zone)
                level = limits.levels.get(f"{per}.{name}", "")
                found.append(
                    Counted(name, per, level, service_class, identity, scope[name], window)
                )
    return tuple(found)


class Reservation:
    """What one request reserves, and how long its answers may therefore be."""

    __slots__ = ("charges", "counted", "is_bounded", "most_output", "tokens")

    def __init__(
        self,
        counted: tuple[Counted, ...] = (),
        charges: tuple[Charge, ...] = (),
        tokens: int = 0,
        most_output: int | None = None,
        is_bounded: bool = False,  # it is ours: the client named none, and a limit binds
    ) -> None:
        self.counted: Final = counted
        self.charges: Final = charges
        self.tokens: Final = tokens
        self.most_output: Final = most_output
        self.is_bounded: Final = is_bounded


def output_bound(
    least_tokens: int | None, *, prompt: int, weight: int, stated: int | None, most: int | None
) -> int | None:
    """Return the longest answer of one sequence that is reserved; None: no limit on tokens."""
    if least_tokens is None:
        return None
    if stated is not None:
        return stated
    room = min(UNSTATED_OUTPUT, (least_tokens - prompt) // weight)
    return max(1, room if most is None else min(room, most))


def reserve(
    plan: Plan,
    floors: dict[str, int],
    *,
    prompt: int,
    weight: int,
    stated: int | None,
    most: int | None,
    generates: bool,
) -> Reservation:
    """Return the charges of a request."""
    bound = None
    if generates:
        bound = output_bound(
            plan.least_tokens, prompt=prompt, weight=weight, stated=stated, most=most
        )
    tokens = prompt + weight * (bound or 0)
    is_bounded = bound is not None and stated is None
    charges = [
        limit.charge(tokens if limit.settles else 1, floors.get(limit.in_books, 0))
        for limit in plan.limits
    ]
    return Reservation(
        counted=plan.limits,
        charges=tuple(charges),
        tokens=tokens,
        most_output=bound if is_bounded else most,
        is_bounded=is_bounded,
    )
