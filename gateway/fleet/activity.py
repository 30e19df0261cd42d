"""What the gateway tells the fleet about one replica, cheaply enough to be told for every chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.fleet.breaker import Event, of_status

Listener = Callable[[Event | None], None]  # None: the engine said that it is busy
_SUCCESS: Final = Event.SUCCESS
_LEAST_ERROR: Final = 400


class Activity:
    """Our own work on one replica, as this process sees it.

    `began` and `ended` frame every request sent; `moved` is called for every piece of an answer
    that is content (comment lines are not life). Only `began` and `ended` cost more than a store.
    """

    __slots__ = ("_listen", "_prefills", "in_flight", "is_well", "moved_s", "waiting_since_s")

    def __init__(self, listen: Listener) -> None:
        self.in_flight = 0
        self.moved_s = 0.0  # when the last content came, on the loop's clock
        self.waiting_since_s = 0.0  # when the replica last went from idle to in flight
        self.is_well = False  # a success was told last: another one would change nothing
        self._prefills: dict[str, float] = {}
        self._listen = listen

    def began(self, ticket_id: str, now_s: float, prefill_s: float = 0.0) -> None:
        """Note that a request was sent; `prefill_s` is how long reading its prompt may take."""
        if self.in_flight == 0:
            self.waiting_since_s = now_s
        self.in_flight += 1
        self._prefills[ticket_id] = prefill_s

    def first_content(self, ticket_id: str, now_s: float) -> None:
        """Note that the prompt was read."""
        self._prefills.pop(ticket_id, None)
        self.moved_s = now_s

    def moved(self, now_s: float) -> None:
        """Note that content came."""
        self.moved_s = now_s

    def ended(self, ticket_id: str) -> None:
        """Note that a request is over, however it ended."""
        self.in_flight = max(0, self.in_flight - 1)
        self._prefills.pop(ticket_id, None)

    def answered(self, status: int) -> None:
        """Note the status of an answer: busy is no failure, a client's mistake is a success."""
        if status >= _LEAST_ERROR:
            self._tell(of_status(status))
        elif not self.is_well:
            self._tell(_SUCCESS)

    def unreachable(self) -> None:
        """Note a connect error, or a reset before the first byte."""
        self._tell(Event.UNREACHABLE)

    def failed(self) -> None:
        """Note a stream that broke or ended in an error event of the engine."""
        self._tell(Event.FAILURE)

    def _tell(self, event: Event | None) -> None:
        self.is_well = event is _SUCCESS
        self._listen(event)

    def longest_prefill_s(self) -> float:
        """Return the longest estimated prefill still going on."""
        return max(self._prefills.values(), default=0.0)
