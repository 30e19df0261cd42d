"""Writes the ticket with which a request stands in line."""

from __future__ import annotations

from typing import Final

from gateway.client import Client
from gateway.core import affinity, fields
from gateway.core.types import Ticket
from gateway.intake import Order
from gateway.record import Story
from gateway.services import Services

LONGEST_HOME_WAIT_MS: Final = 2_000
READ_PER_S: Final = 2_048  # tokens of a prompt, before anything is known of an engine


def ticket_of(services: Services, client: Client, order: Order, story: Story) -> Ticket:
    """Return what the ledger needs to know of a request."""
    way, caller, session = order.way, order.caller, order.session
    pool, names = way.pool_name, way.replica_ids
    cached = services.estimator.cached_tokens(session) if session else 0
    output = 0
    if order.kind in fields.GENERATES:
        output = services.estimator.output_tokens(caller.user_id, pool, order.asked.max_tokens)
    return Ticket(
        ticket_id=client.request_id,
        key_id=caller.key.key_id,
        user_id=caller.user_id,
        service_class=caller.service_class,
        pool=pool,
        weight=order.asked.weight,
        prefill_tokens=max(1, order.prompt_tokens - cached),
        output_tokens=output * order.asked.weight,
        replica_order=affinity.rendezvous(session, names) if session and len(names) > 1 else names,
        session=session,
        ttl_ms=order.ttl_ms(services.config),
        place=order.place,
        fingerprint=order.fingerprint,
        charges=order.reservation.charges,
        # A session waits for its full home no longer than half of what its warm cache saves.
        home_wait_ms=min(LONGEST_HOME_WAIT_MS, cached * 1000 // (2 * READ_PER_S)),
        group=way.group,
        # With the memory ledger nobody would be left to write it.
        interrupted=story.interrupted() if services.config.ledger == "redis" else b"",
    )
