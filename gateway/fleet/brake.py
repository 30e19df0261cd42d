"""Lowers the slots of a replica that shows pressure, and gives them back in small steps.

Rule 1: the engine's numbers only ever lower our budget; unknown numbers change nothing.
Rule 2: three samples in a row with requests waiting inside the engine, or a preemption, take a
fifth of the slots. Five quiet minutes under load give one back, and so does each idle sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SAMPLES_TO_BRAKE = 3
QUIET_S = 300.0


@dataclass(frozen=True, slots=True)
class Brake:
    """The slots in force on one replica; immutable, `after` returns the next state."""

    full: int  # S: what may be used when all is well
    slots: int  # what may be used now
    pressed: int = 0  # samples in a row with requests waiting inside the engine
    quiet_since_s: float | None = None

    @property
    def on(self) -> bool:
        """Tell whether slots are held back."""
        return self.slots < self.full

    def resized(self, full: int) -> Brake:
        """Return the brake for another S: lowered at once, raised to all of it when open."""
        slots = min(self.slots, full) if self.on else full
        return replace(self, full=full, slots=max(1, slots))

    def after(
        self, now_s: float, running: int | None, waiting: int | None, preempted: bool
    ) -> Brake:
        """Return the brake after one more sample of the engine's numbers."""
        if waiting is None and not preempted:
            return replace(self, pressed=0, quiet_since_s=None)
        pressed = self.pressed + 1 if waiting else 0
        if preempted or pressed >= SAMPLES_TO_BRAKE:
            return Brake(self.full, max(1, self.slots * 4 // 5), 0, None)
        if pressed:
            return replace(self, pressed=pressed, quiet_since_s=None)
        return self._eased(now_s, idle=running == 0)

    def _eased(self, now_s: float, *, idle: bool) -> Brake:
        since_s = now_s if self.quiet_since_s is None else self.quiet_since_s
        if self.on and (idle or now_s - since_s >= QUIET_S):
            return Brake(self.full, self.slots + 1, 0, now_s)
        return replace(self, pressed=0, quiet_since_s=since_s)
