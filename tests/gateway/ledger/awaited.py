"""A ledger's word that a test can await."""

from __future__ import annotations

import asyncio

from gateway.core.types import Grant, Ticket
from gateway.ledger.interface import Ledger, Refused
from gateway.ledger.waiting import Waiter


class Awaited(Waiter):
    """Turns the word into the end of a future."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

    def granted(self, grant: Grant) -> None:
        self.future.set_result(grant)

    def refused(self, refused: Refused) -> None:
        self.future.set_exception(refused)


def admit(ledger: Ledger, ticket: Ticket) -> asyncio.Future[Grant]:
    """Queue the ticket; the future resolves with its grant or raises `Refused`."""
    waiter = Awaited()
    ledger.admit(ticket, waiter)
    return waiter.future
