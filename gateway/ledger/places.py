"""Keeps the place of a ticket that left unserved, so that a retry returns with its rank.

Rule 1: a place belongs to one key in one pool and class, is used once, and ends by itself.
Rule 2: a flow keeps few places (batch: its accrual window; interactive: its queue bound), so
nobody collects age by being refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.core.types import Ticket
from gateway.ledger.state import FlowId


def _flow(ticket: Ticket) -> FlowId:
    return (ticket.pool, ticket.service_class, ticket.user_id)


@dataclass(frozen=True, slots=True)
class Place:
    """What comes back with a returning client."""

    place_id: str
    flow: FlowId
    key_id: str
    fingerprint: str
    seq: int
    ageing_since_ms: int | None
    expires_ms: int


@dataclass(slots=True)
class Places:
    """All places of a ledger, oldest first."""

    kept: dict[str, Place] = field(default_factory=dict)
    by_body: dict[tuple[str, str], str] = field(default_factory=dict)  # key, SHA-256 -> place
    of_flow: Counter[FlowId] = field(default_factory=Counter)

    def keep(
        self, ticket: Ticket, seq: int, ageing_since_ms: int | None, expires_ms: int, most: int
    ) -> str:
        """Keep the ticket's place and return what to show for it, "" when the flow has enough."""
        flow = _flow(ticket)
        if self.of_flow[flow] >= most:
            return ""
        self._drop(ticket.ticket_id)
        place = Place(
            ticket.ticket_id, flow, ticket.key_id, ticket.fingerprint, seq, ageing_since_ms,
            expires_ms,
        )  # fmt: skip
        self.kept[place.place_id] = place
        self.of_flow[flow] += 1
        if ticket.fingerprint:
            self.by_body[(ticket.key_id, ticket.fingerprint)] = place.place_id
        return place.place_id

    def take(self, ticket: Ticket, now_ms: int) -> Place | None:
        """Return and use up the place a returning ticket shows, or has by its body."""
        place_id = ticket.place or self.by_body.get((ticket.key_id, ticket.fingerprint), "")
        place = self.kept.get(place_id)
        if place is None or place.key_id != ticket.key_id or place.flow != _flow(ticket):
            return None
        self._drop(place_id)
        return place if place.expires_ms > now_ms else None

    def expire(self, now_ms: int) -> None:
        for place in [p for p in self.kept.values() if p.expires_ms <= now_ms]:
            self._drop(place.place_id)

    def _drop(self, place_id: str) -> None:
        place = self.kept.pop(place_id, None)
        if place is None:
            return
        self.of_flow[place.flow] -= 1
        if self.by_body.get((place.key_id, place.fingerprint)) == place_id:
            del self.by_body[(place.key_id, place.fingerprint)]
