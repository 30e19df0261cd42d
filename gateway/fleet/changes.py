"""Finds in the difference of two looks what a single look cannot show: waits and strangers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.core.types import LedgerView, ServiceClass

FOREIGN_S = 15.0
Start = tuple[str, ServiceClass, float]  # pool, class, seconds waited


class Starts:
    """How long those waited that started between two looks."""

    def __init__(self) -> None:
        self._queued_s: dict[str, float] = {}
        self._running: set[str] = set()

    def since_last(self, view: LedgerView) -> list[Start]:
        """Return what started since the last look; a ticket never seen waiting did not wait."""
        running = {holding.ticket_id: holding for holding in view.running}
        started = [
            (holding.pool, holding.service_class, self._queued_s.get(ticket_id, 0.0))
            for ticket_id, holding in running.items()
            if ticket_id not in self._running
        ]
        self._running = set(running)
        self._queued_s = {s.ticket_id: s.queued_ms / 1000 for s in view.queued}
        return started


class Strangers:
    """Requests that are inside an engine for a while and did not come through us."""

    def __init__(self) -> None:
        self._fewest: dict[str, tuple[int, float]] = {}  # replica: fewest strangers, since when

    def look(
        self, now: float, inside: Iterable[tuple[str, int | None]], held: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the strangers by replica; `inside` is None where nothing may be said.

        A request that just ended is still inside for a moment, so only what stays counts.
        """
        for name, count in inside:
            strangers = 0 if count is None else max(0, count - held.get(name, 0))
            if not strangers:
                self._fewest.pop(name, None)
                continue
            fewest, since = self._fewest.get(name, (strangers, now))
            self._fewest[name] = (min(fewest, strangers), since)
        return {
            name: fewest
            for name, (fewest, since) in self._fewest.items()
            if now - since >= FOREIGN_S
        }
