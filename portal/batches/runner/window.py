"""Decides how many more lines of one person may be sent to the gateway now.

Rule 1: in flight is the gateway's business: it grants as many as limits and load allow. Waiting
is ours: no more than `ACCRUAL` (A) of a person's lines wait there, because only the first A of a
flow gain age, and the rest of a job waits in its table.
Rule 2: how many are in flight is read from the gateway now and then. The most seen lately is what
it grants: a reading between the end of one line and the start of the next says too little.
Rule 3: when the gateway does not say, the smallest limit anybody has is assumed.
Rule 4: lines that end sooner than the gateway is asked again would leave it idle between two
turns: while such lines find no queue, a burst of up to `BURST` more may be out. The first reading
that shows a queue takes the burst away.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

ACCRUAL = 2
UNKNOWN_IN_FLIGHT = 2
STALE_AFTER_S = 5.0
READINGS = 3  # how many make "lately"
BURST = 12
QUICK_S = 0.3  # a line that takes less ends between two readings


@dataclass(slots=True)
class Window:
    """The window of one lane."""

    most: int  # lines at the gateway, whatever it grants
    outstanding: int = 0
    burst: int = 0
    line_s: float = QUICK_S  # how long lines take, smoothed
    read_at_s: float | None = None
    _in_flight: deque[int] = field(default_factory=lambda: deque(maxlen=READINGS))

    def sent(self, count: int = 1) -> None:
        """Note lines sent."""
        self.outstanding += count

    def ended(self, after_s: float = QUICK_S) -> None:
        """Note the end of a line, whatever its end was."""
        self.outstanding -= 1
        self.line_s += 0.2 * (after_s - self.line_s)

    def read(self, in_flight: int, waiting: int, now_s: float) -> bool:
        """Note what the gateway says of this person's lines; True: it grants more than it did."""
        grew = waiting == 0 and in_flight > max(self._in_flight, default=0)
        is_quick = waiting == 0 and self.line_s < QUICK_S
        self.burst = min(BURST, self.burst + ACCRUAL) if is_quick else 0
        self._in_flight.append(in_flight)
        self.read_at_s = now_s
        return grew

    def room(self, now_s: float) -> int:
        """Return how many more lines may be sent."""
        if self.read_at_s is None or now_s - self.read_at_s > STALE_AFTER_S:
            granted = UNKNOWN_IN_FLIGHT
        else:
            granted = max(self._in_flight) + self.burst
        return max(0, min(granted + ACCRUAL, self.most) - self.outstanding)
