"""Judges from a row of probes whether a replica is up.

Rule 1: down after 3 failures in a row, up after 2 successes in a row; the first verdict after
start-up needs one success only, so that a fresh gateway does not make people wait.
Rule 2: an engine that sends bytes to somebody is alive, whatever its health page does. A probe
that got no answer in time says nothing while bytes flow.
Rule 3: loading is neither up nor down; it takes no work and is no failure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.engines.base import Health

FAILURES_TO_DOWN = 3
SUCCESSES_TO_UP = 2


class Condition(StrEnum):
    """What the probes say."""

    UNKNOWN = "unknown"
    UP = "up"
    LOADING = "loading"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Probes:
    """The last probes of one replica; immutable, `after` returns the next state."""

    condition: Condition = Condition.UNKNOWN
    failures: int = 0  # in a row
    successes: int = 0  # in a row

    def after(self, health: Health, *, bytes_flow: bool = False) -> Probes:
        """Return the state after one more probe."""
        if health is Health.LOADING:
            return Probes(Condition.LOADING)
        if health is Health.OK:
            return self._succeeded()
        if health is Health.SILENT and bytes_flow:
            return self
        return self._failed()

    def _succeeded(self) -> Probes:
        successes = self.successes + 1
        at_once = self.condition in (Condition.UNKNOWN, Condition.LOADING)
        up = at_once or self.condition is Condition.UP or successes >= SUCCESSES_TO_UP
        return Probes(Condition.UP if up else self.condition, 0, successes)

    def _failed(self) -> Probes:
        failures = self.failures + 1
        down = self.condition is Condition.LOADING or failures >= FAILURES_TO_DOWN
        condition = Condition.DOWN if down else self.condition
        return replace(self, condition=condition, failures=failures, successes=0)
