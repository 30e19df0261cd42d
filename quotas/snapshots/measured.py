"""What each replica was measured at, so that a gateway notices one that has become slow.

In Redis: hash `fairway:measured`, replica id -> JSON of `Measured`; written again every minute by
whoever keeps the minutes, because Redis may be emptied at any time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

MEASURED = "fairway:measured"
# List of finished minutes, one JSON object per pool and minute (fields of quotas' PoolMinute, with
# `at` in Unix seconds); the gateway appends, the books take away what they have kept.
MINUTES = "fairway:minutes"


@dataclass(frozen=True, slots=True)
class Measured:
    """The last complete run of a replica, in the few numbers a watchdog needs."""

    run: str
    fingerprint: dict[str, str]
    prefill_per_s: float  # prompt tokens per second, all requests together
    decode_per_s: tuple[tuple[int, float], ...]  # (concurrency, answer tokens per second)

    def to_json(self) -> str:
        """Serialise for Redis."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def decode_at(self, running: float) -> float:
        """Return the measured decode rate at this concurrency, between points in a line."""
        points = sorted(self.decode_per_s)
        below = [p for p in points if p[0] <= running] or [points[0]]
        above = [p for p in points if p[0] >= running] or [points[-1]]
        (low, slow), (high, fast) = below[-1], above[0]
        if high <= low:
            return slow
        return slow + (fast - slow) * (running - low) / (high - low)


def measured_from_json(text: bytes | str) -> Measured:
    """Read what `to_json` wrote."""
    raw: dict[str, Any] = json.loads(text)
    raw["decode_per_s"] = tuple((int(c), float(rate)) for c, rate in raw["decode_per_s"])
    return Measured(**raw)
