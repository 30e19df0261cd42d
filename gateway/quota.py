"""Counted limits towards people: what a request reserves, what a refusal says, the quota card.

The ledger counts; everything shown here is what the ledger said in the same step in which it
admitted or refused, so the header, the card and the gate never differ.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from gateway.caller import Caller
from gateway.charges import (
    COUNTED,
    Counted,
    Plan,
    Reservation,
    counted,
    needs_calendar,
    reserve,
)
from gateway.core.fields import GENERATES, Asked
from gateway.core.headers import Headers
from gateway.core.types import QuotaState
from gateway.counters import Counters
from gateway.directory import Directory
from gateway.errors import BadRequest, GatewayError, InsufficientQuota, Rejected
from gateway.ledger.interface import Refused
from quotas.snapshots.directory import Limits

LONGEST_MINUTE_WAIT_S = 60
#: The counted limits of a caller, and what the books say was used of those they count.
Known = tuple[Plan, dict[str, int]]
_NO_PLAN: Final = Plan(())


class Quota:
    """Finds the counted limits of a caller and what the books know of them."""

    def __init__(self, counters: Counters, directory: Directory) -> None:
        self._counters = counters
        self._directory = directory

    async def counted(
        self, limits: Limits, service_class: str, identities: Mapping[str, str]
    ) -> tuple[Counted, ...]:
        """Return the counted limits that bind somebody now."""
        zone = "UTC"
        if needs_calendar(limits):
            zone = await self._counters.zone(self._directory.generation)
        return counted(limits, service_class, identities, dt.datetime.now(dt.UTC), zone)

    def at_hand(self, caller: Caller) -> Known | None:
        """Return a caller's limits and what was used of them, None where that must be asked."""
        if not caller.is_counted:
            return _NO_PLAN, {}
        generation, zone = self._directory.generation, "UTC"
        if caller.needs_calendar:
            zone = self._counters.zone_at_hand(generation)
        plan = caller.plans.get(zone)
        if plan is None or plan.ends_at_ms <= time.time() * 1000:
            return None
        if not plan.in_books:
            return plan, {}
        floors = self._counters.at_hand(plan.in_books, generation)
        return None if floors is None else (plan, floors)

    async def asked(self, caller: Caller) -> Known:
        """Return the same, worked out anew when one of its windows has ended."""
        zone = "UTC"
        if caller.needs_calendar:
            zone = await self._counters.zone(self._directory.generation)
        plan = caller.plans.get(zone)
        if plan is None or plan.ends_at_ms <= time.time() * 1000:
            now = dt.datetime.now(dt.UTC)
            limits = counted(
                caller.limits, caller.service_class.value, caller.identities, now, zone
            )
            plan = caller.plans[zone] = Plan(limits)
        return plan, await self.floors(plan.limits)

    async def floors(self, limits: Iterable[Counted]) -> dict[str, int]:
        """Return what the books say was used of the limits of a day or month."""
        names = [limit.in_books for limit in limits if limit.in_books]
        return await self._counters.floors(names, self._directory.generation) if names else {}

    @staticmethod
    def reserve(known: Known, asked: Asked, prompt: int, most: int | None) -> Reservation:
        """Return what a request reserves, or say that it could never be had."""
        plan, floors = known
        reservation = reserve(
            plan,
            floors,
            prompt=prompt,
            weight=asked.weight,
            stated=asked.max_tokens,
            most=most,
            generates=asked.kind in GENERATES,
        )
        if plan.least_tokens is not None and plan.least_tokens < reservation.tokens:
            for limit in plan.limits:
                if limit.settles and 0 < limit.limit < reservation.tokens:
                    raise _never_fits(limit, reservation.tokens)
        return reservation


class Standings:
    """Where the counted limits of one request stood when the ledger had spoken about it."""

    __slots__ = ("_reservation", "states")

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self.states: tuple[QuotaState, ...] = ()

    def headers(self) -> Headers:
        """Return x-ratelimit-*, or nothing while the ledger has not said."""
        if not self.states:
            return []
        return headers(self._reservation.counted, self.states, time.time())

    def refusal(self, refused: Refused) -> GatewayError | None:
        """Return the answer when one of the limits has no room; None: it was something else."""
        return refusal(self._reservation, refused, time.time())


# Answers


def _whom(limit: Counted) -> str:
    return {"key": "this key", "person": "you", "group": "your group"}[limit.per]


def _words(limit: Counted) -> str:
    _, window = COUNTED[limit.name]
    return f"{limit.limit:,} {limit.unit} per {window} for {_whom(limit)}"


def _never_fits(limit: Counted, tokens: int) -> GatewayError:
    return BadRequest(
        f"The request may need {tokens:,} tokens (prompt and longest answer), and the limit is "
        f"{_words(limit)}. Lower max_tokens or shorten the prompt.",
        code="request_exceeds_limit",
        param="max_tokens",
        details={"quota": {**_named(limit), "requested": tokens}},
    )


def _named(limit: Counted) -> dict[str, Any]:
    return {
        "name": limit.name,
        "per": limit.per,
        "level": limit.level,
        "service_class": limit.service_class,
        "limit": limit.limit,
    }


def resets_at(limit: Counted, state: QuotaState, now_s: float) -> float | None:
    """Return when the limit resets, Unix seconds: the calendar's own instant, or the bucket's."""
    if limit.window is not None:
        return limit.window.end_ms / 1000
    return None if state.resets_in_ms is None else now_s + state.resets_in_ms / 1000


def line(limit: Counted, state: QuotaState, now_s: float) -> dict[str, Any]:
    """Return one line of a quota card."""
    return {
        **_named(limit),
        "unit": limit.unit,
        "window": COUNTED[limit.name][1],
        "used": state.used,
        "remaining": max(0, state.limit - state.used),
        "resets_at": resets_at(limit, state, now_s),
    }


def refusal(reservation: Reservation, refused: Refused, now_s: float) -> GatewayError | None:
    """Return the answer to a request one of whose limits has no room; None: not one of them."""
    state = refused.quota
    if state is None:
        return None
    for limit, charge in zip(reservation.counted, reservation.charges, strict=True):
        if (charge.counter, charge.window) == (state.counter, state.window):
            return _refusal(limit, charge.amount, state, now_s)
    return None


def _refusal(limit: Counted, amount: int, state: QuotaState, now_s: float) -> GatewayError:
    kind = Rejected if limit.window is None else InsufficientQuota
    reset_s = resets_at(limit, state, now_s)
    wait_s = LONGEST_MINUTE_WAIT_S if reset_s is None else max(0.0, reset_s - now_s)
    until = "" if limit.window is None else f" It resets at {limit.window.end.isoformat()}."
    return kind(
        f"The limit is {_words(limit)}; {state.used:,} are used or reserved and this request "
        f"reserves {amount:,}.{until}",
        retry_after_s=wait_s,
        details={"quota": {**line(limit, state, now_s), "requested": amount}},
    )


# Headers


def duration(ms: int) -> str:
    """Return a duration the way OpenAI writes it: 17ms, 1.5s, 6m0s, 1h0m3s."""
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return _long_duration(-(-ms // 1000))


@lru_cache(maxsize=256)
def _long_duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"


def headers(limits: tuple[Counted, ...], states: tuple[QuotaState, ...], now_s: float) -> Headers:
    """Return x-ratelimit-*: of several limits on one thing, the one that has least left."""
    found: Headers = []
    for is_tokens in (False, True):
        scarcest, least = -1, 0
        for number in range(len(states)):
            if limits[number].settles is is_tokens:
                state = states[number]
                remaining = max(0, state.limit - state.used)
                if scarcest < 0 or remaining < least:
                    scarcest, least = number, remaining
        if scarcest >= 0:
            limit, state = limits[scarcest], states[scarcest]
            of_limit, of_remaining, of_reset = limit.headers
            found.append((of_limit, b"%d" % state.limit))
            found.append((of_remaining, b"%d" % least))
            found.append((of_reset, duration(_resets_in_ms(limit, state, now_s)).encode()))
    return found


def _resets_in_ms(limit: Counted, state: QuotaState, now_s: float) -> int:
    if limit.window is not None:
        return max(0, limit.ends_at_ms - int(now_s * 1000))
    return state.resets_in_ms or 0
