"""Counted limits: requests and tokens per minute, tokens per day and month.

Rule 1: a ticket's charges are checked together and taken all or none; a refusal costs nothing.
Rule 2: tokens are reserved by estimate and settled to what was really used; a ticket that leaves
unserved gives its tokens back, but a request that was admitted stays counted.
Rule 3: a counter is never negative, and never below what the books say was used.
"""

from __future__ import annotations

from typing import Final

from gateway.core.types import Charge, QuotaState

MINUTE_MS: Final = 60_000


class Bucket:
    """What of a minute's worth is used at one instant; see quotas.snapshots.windows."""

    __slots__ = ("at_ms", "level")

    def __init__(self, level: int = 0, at_ms: int = 0) -> None:
        self.level: Final = level
        self.at_ms: Final = at_ms

    def leaked(self, now_ms: int, limit: int) -> Bucket:
        """Return the bucket as it is now; a clock that went back leaks nothing."""
        passed = now_ms - self.at_ms
        if passed <= 0:
            return self
        return Bucket(max(0, self.level - limit * passed), now_ms)

    def fits(self, cost: int, limit: int) -> bool:
        """Tell whether `cost` more fit at this instant (the bucket must be leaked to now)."""
        return self.level + cost * MINUTE_MS <= limit * MINUTE_MS

    def charged(self, cost: int) -> Bucket:
        """Return the bucket after charging `cost`, or giving back a negative one."""
        return Bucket(max(0, self.level + cost * MINUTE_MS), self.at_ms)

    def used(self) -> int:
        """Return how many are in it, a part of one counting as one."""
        return -(-self.level // MINUTE_MS)

    def wait_ms(self, cost: int, limit: int) -> int | None:
        """Return the milliseconds until `cost` fits; None: it never does."""
        if cost > limit:
            return None
        missing = self.level + (cost - limit) * MINUTE_MS
        return max(0, -(-missing // limit)) if limit else 0


class Quotas:
    """All counters of a ledger."""

    def __init__(self) -> None:
        self.sums: dict[str, dict[str, int]] = {}  # window -> counter -> used
        self.minutes: dict[str, Bucket] = {}

    def refusal(self, charges: tuple[Charge, ...], now_ms: int) -> QuotaState | None:
        """Return the first limit that has no room for its charge."""
        for charge in charges:
            if charge.window:
                fits = self._sum(charge) + charge.amount <= charge.limit
            else:
                fits = self._minute(charge, now_ms).fits(charge.amount, charge.limit)
            if not fits:
                return self._state(charge, charge.amount, now_ms)
        return None

    def standing(self, charges: tuple[Charge, ...], now_ms: int) -> tuple[QuotaState, ...]:
        """Return where limits stand, and when each is whole again."""
        return tuple([self._state(charge, charge.limit, now_ms) for charge in charges])

    def _state(self, charge: Charge, amount: int, now_ms: int) -> QuotaState:
        """Return where a limit stands, and when so much more would fit."""
        name, limit = charge.counter, charge.limit
        if charge.window:
            wait = max(0, charge.ends_at_ms - now_ms)
            return QuotaState(name, charge.window, self._sum(charge), limit, wait)
        bucket = self._minute(charge, now_ms)
        return QuotaState(name, "", bucket.used(), limit, bucket.wait_ms(amount, limit))

    def take(self, charges: tuple[Charge, ...], now_ms: int, *, again: bool = False) -> None:
        """Reserve; `again` after an adoption, when admitted requests are counted already."""
        for charge in charges:
            if charge.settles or not again:
                self._add(charge, charge.amount, now_ms)

    def settle(self, charges: tuple[Charge, ...], tokens: int, now_ms: int) -> None:
        """Replace what was reserved by the tokens really used."""
        for charge in charges:
            if charge.settles:
                self._add(charge, tokens - charge.amount, now_ms)

    def _add(self, charge: Charge, amount: int, now_ms: int) -> None:
        if charge.window:
            used = max(0, self._sum(charge) + amount)
            self.sums.setdefault(charge.window, {})[charge.counter] = used
        else:
            self.minutes[charge.counter] = self._minute(charge, now_ms).charged(amount)

    def _sum(self, charge: Charge) -> int:
        of_window = self.sums.get(charge.window)
        used = 0 if of_window is None else of_window.get(charge.counter, 0)
        return max(used, charge.floor)

    def _minute(self, charge: Charge, now_ms: int) -> Bucket:
        bucket = self.minutes.get(charge.counter)
        return Bucket(0, now_ms) if bucket is None else bucket.leaked(now_ms, charge.limit)
