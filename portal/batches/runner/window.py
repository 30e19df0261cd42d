"""Decides how many more lines of one person may be sent to the gateway now.

Rule 1: in flight is the gateway's business: it grants as many as limits and load allow. Waiting
is ours: never more than `ACCRUAL` (A) of a person's lines wait there, because only the first A
of a flow gain age, and the rest of a job waits in its table.
Rule 2: the count of waiting lines is read from the gateway now and then; in between, each line
sent adds one and each line ended lets one start.
Rule 3: when the gateway does not say, the smallest limit anybody has is assumed.
Rule 4: lines that end sooner than the gateway is asked again would leave it idle between two
turns: while such lines find no queue, a burst of up to `BURST` more may be out. The first reading
that shows a queue takes the burst away.
"""

from __future__ import annotations

from dataclasses import dataclass

ACCRUAL = 2
UNKNOWN_IN_FLIGHT = 2
STALE_AFTER_S = 5.0
BURST = 12
QUICK_S = 0.3  # a line that takes less ends between two readings


@dataclass(slots=True)
class Window:
    """The window of one lane."""

    most: int  # lines at the gateway, whatever it grants
    outstanding: int = 0
    sent_in_all: int = 0
    waiting: int | None = None  # as estimated from the last reading; None: never read
    read_at_s: float = 0.0
    burst: int = 0
    line_s: float = QUICK_S  # how long lines take, smoothed

    def sent(self, count: int = 1) -> None:
        """Note lines sent."""
        self.outstanding += count
        self.sent_in_all += count
        if self.waiting is not None:
            self.waiting += count

    def ended(self, after_s: float = QUICK_S) -> None:
        """Note the end of a line, whatever its end was; a waiting one takes its place."""
        self.outstanding -= 1
        self.line_s += 0.2 * (after_s - self.line_s)
        if self.waiting is not None:
            self.waiting -= 1

    def read(self, waiting: int, now_s: float, sent_before: int) -> None:
        """Note what the gateway says; it may not have seen what was sent after the question."""
        is_quick = waiting == 0 and self.line_s < QUICK_S
        self.burst = min(BURST, self.burst + ACCRUAL) if is_quick else 0
        self.waiting = waiting + self.sent_in_all - sent_before
        self.read_at_s = now_s

    def room(self, now_s: float) -> int:
        """Return how many more lines may be sent."""
        if self.waiting is None or now_s - self.read_at_s > STALE_AFTER_S:
            allowed = UNKNOWN_IN_FLIGHT + ACCRUAL - self.outstanding
        else:
            allowed = ACCRUAL + self.burst - self.waiting
        return max(0, min(allowed, self.most - self.outstanding))
