"""Sets a request to an engine going: at once, unless something has to be waited for first."""

from __future__ import annotations

from gateway import errors, intake
from gateway.client import Client
from gateway.core.fields import Kind
from gateway.holding import refuse_while_measured
from gateway.intake import Order
from gateway.request import Request
from gateway.services import Services


def serve_at_once(services: Services, kind: Kind, client: Client) -> bool:
    """Understand one request to an engine and set it going; it goes on by itself.

    False: its body or its key has to be waited for, so `serve` it.
    """
    _check_open(services)
    order = intake.take_at_once(services, kind, client)
    if order is None:
        return False
    _set_going(services, client, order)
    return True


async def serve(services: Services, kind: Kind, client: Client) -> None:
    """Do the same, and wait for what has to be waited for."""
    _check_open(services)
    order = await intake.take(services, kind, client)
    _check_open(services)
    _set_going(services, client, order)


def _check_open(services: Services) -> None:
    if services.draining:
        raise errors.shutting_down()


def _set_going(services: Services, client: Client, order: Order) -> None:
    refuse_while_measured(services.fleet, order.way.pool_name)
    Request(services, client, order).begin()
