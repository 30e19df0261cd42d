"""Counted limits: requests and tokens per minute, tokens per day and month.

Rule 1: a ticket's charges are checked together and taken all or none; a refusal costs nothing.
Rule 2: tokens are reserved by estimate and settled to what was really used; a ticket that leaves
unserved gives its tokens back, but a request that was admitted stays counted.
Rule 3: a counter is never negative, and never below what the books say was used.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gateway.core.types import Charge, QuotaState
from quotas.snapshots.windows import MINUTE_MS, Bucket


class Quotas:
    """All counters of a ledger."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, Counter[str]] = defaultdict(
            Counter
        )  # window -> counter -> used
        self.minutes: dict[str, Bucket] = {}

    def refusal(self, charges: tuple[Charge, ...], now_ms: int) -> QuotaState | None:
        """Return the first limit that has no room for its charge."""
        for charge in charges:
            if charge.window:
                fits = self._sum(charge) + charge.amount <= charge.limit
            else:
                fits = self._minute(charge, now_ms).fits(charge.amount, charge.limit)
            if not fits:
                return self.state(charge, charge.amount, now_ms)
        return None

    def standing(self, charges: tuple[Charge, ...], now_ms: int) -> tuple[QuotaState, ...]:
        """Return where limits stand, and when each is whole again."""
        return tuple([self.state(charge, charge.limit, now_ms) for charge in charges])

    def state(self, charge: Charge, amount: int, now_ms: int) -> QuotaState:
        """Return where a limit stands, and when so much more would fit."""
        name, limit = charge.counter, charge.limit
        if charge.window:
            wait = max(0, charge.ends_at_ms - now_ms)
            return QuotaState(name, charge.window, self._sum(charge), limit, wait)
        bucket = self._minute(charge, now_ms)
        used = -(-bucket.level // MINUTE_MS)
        return QuotaState(name, "", used, limit, bucket.wait_ms(amount, limit))

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
            self.sums[charge.window][charge.counter] = max(0, self._sum(charge) + amount)
        else:
            self.minutes[charge.counter] = self._minute(charge, now_ms).charged(amount)

    def _sum(self, charge: Charge) -> int:
        return max(self.sums[charge.window][charge.counter], charge.floor)

    def _minute(self, charge: Charge, now_ms: int) -> Bucket:
        return self.minutes.get(charge.counter, Bucket(0, now_ms)).leaked(now_ms, charge.limit)
