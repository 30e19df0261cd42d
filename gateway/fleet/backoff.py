"""Decides how long a replica that said it is busy (429, 503) is asked for nothing more.

Rule 1: no clock. The caller hands in the time, in seconds of any steady clock.
Rule 2: what was under way together counts once: only after a pause does a busy word lengthen the
next one. It begins short, because a full engine has room again as soon as one answer ends.
Rule 3: an answer of the engine ends the growth, not the pause: it may have been the last slot's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_S = 0.25
LONGEST_S = 2.0


@dataclass(frozen=True, slots=True)
class BackOff:
    """The pause of one replica; immutable, `after_...` returns the next one."""

    until_s: float = 0.0
    next_s: float = FIRST_S  # how long the next pause is

    def after_busy(self, now_s: float) -> BackOff:
        """Return the pause after the engine said that it takes no more."""
        if now_s < self.until_s:
            return self
        return BackOff(now_s + self.next_s, min(LONGEST_S, self.next_s * 2))

    def after_success(self) -> BackOff:
        """Return the pause after the engine answered a request."""
        return replace(self, next_s=FIRST_S)

    def left_s(self, now_s: float) -> float:
        """Return how long the pause still lasts."""
        return max(0.0, self.until_s - now_s)
