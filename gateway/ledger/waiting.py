"""Who hears the ledger's word on a ticket: called, not awaited, for a request has no task."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gateway.core.types import Grant, QuotaState
from gateway.ledger.refused import Refused


class Waiter(ABC):
    """Waits for one word of the ledger, a grant or a refusal, and hears it exactly once.

    Rule 1: the word may come before `admit` has returned.
    Rule 2: what a waiter tells the ledger from there is of the next step, never of this one.
    Rule 3: it deals with its own errors; the ledger only logs those it lets pass.
    """

    __slots__ = ()

    def stands(self, states: tuple[QuotaState, ...]) -> None:  # noqa: B027 (may be left as it is)
        """Hear where the ticket's counted limits stand, in the order of its charges.

        Said once, before anything else, in the step that takes the ticket or turns it away.
        """

    @abstractmethod
    def granted(self, grant: Grant) -> None:
        """Go on with a slot."""

    @abstractmethod
    def refused(self, refused: Refused) -> None:
        """Take a no: the ticket was turned away or left the queue unserved."""
