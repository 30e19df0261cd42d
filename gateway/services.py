"""What the requests of one gateway process share, put together in one place."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from gateway import errors
from gateway.answer import Buffers
from gateway.config import Config
from gateway.core.estimate import Estimator
from gateway.core.fields import Rules
from gateway.core.types import LedgerView, Standing
from gateway.counters import Counters
from gateway.directory import Directory
from gateway.errors import GatewayError
from gateway.fleet.holds import Holds
from gateway.fleet.prober import Fleet
from gateway.fleet.watcher import Watcher
from gateway.ledger.interface import Ledger, Refused
from gateway.metrics import Metrics
from gateway.quota import Quota
from gateway.stopping import Stops
from gateway.upstream import Upstream
from gateway.usage import Outbox

TICK_S = 0.5
TICKED_AT_ONCE = 32
VIEW_AGE_S = 1.0
OLDEST_VIEW_S = 5.0
STALE_S = 15.0
FIRST_LOOK_S = 5.0
LOOK_SHARE = 0.1  # most of the time that may go into looking ahead, however long the queue


class Live(Protocol):
    """A request that waits or runs here, as far as others need to know it."""

    @property
    def request_id(self) -> str: ...
    @property
    def pool_name(self) -> str: ...
    def tick(self, now: float) -> None: ...
    def stop(self, error: GatewayError) -> None: ...
    def leave_queue(self, error: GatewayError) -> None: ...


class Lookout:
    """Looks at the ledger with its forecasts, for everybody together.

    At most once a second, and less often when a very full queue makes a look dear.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.looked_at = 0.0  # Unix seconds of the last picture
        self._last: LedgerView | None = None
        self._ledger = ledger
        self._looked_s = float("-inf")
        self._took_s = 0.0
        self._looking: asyncio.Task[LedgerView] | None = None

    async def view(self) -> LedgerView:
        """Return a picture that is about a second old; `looked_at` says when it was true."""
        now = asyncio.get_running_loop().time()
        lasts_s = min(max(VIEW_AGE_S, self._took_s / LOOK_SHARE), OLDEST_VIEW_S)
        if self._looking is None or now - self._looked_s >= lasts_s:
            self._looked_s = now
            self._looking = asyncio.ensure_future(self._look())
            # Looked at, so that asyncio does not complain when whoever asked has left.
            self._looking.add_done_callback(lambda look: look.cancelled() or look.exception())
        # Shielded: the look is shared, and whoever asked first may leave.
        return await asyncio.shield(self._looking)

    async def _look(self) -> LedgerView:
        loop, self._took_s = asyncio.get_running_loop(), 0.0
        began_s, began_at = loop.time(), time.time()
        view = await self._ledger.view()
        self._took_s, self.looked_at, self._last = loop.time() - began_s, began_at, view
        return view

    async def picture(self, within_s: float) -> LedgerView | None:
        """Return a picture in this time: the last one if a new one takes longer, else None.

        A busy machine is no reason to know nothing; fifteen seconds of silence are.
        """
        try:
            async with asyncio.timeout(within_s if self._last else FIRST_LOOK_S):
                return await self.view()
        except (Refused, OSError, TimeoutError):
            return self._last if time.time() - self.looked_at <= STALE_S else None

    async def standing(self, ticket_id: str) -> Standing | None:
        """Return where one waiting request stands, None when nobody can say."""
        try:
            view = await self.view()
        except Refused:
            return None
        return next((one for one in view.queued if one.ticket_id == ticket_id), None)


@dataclass(eq=False)
class Services:
    """One of each per process."""

    config: Config
    directory: Directory
    counters: Counters
    quota: Quota
    ledger: Ledger
    lookout: Lookout
    fleet: Fleet
    upstream: Upstream
    outbox: Outbox
    metrics: Metrics
    buffers: Buffers
    holds: Holds
    watcher: Watcher
    stops: Stops
    estimator: Estimator = field(default_factory=Estimator)
    live: set[Live] = field(default_factory=set)
    draining: bool = False
    rules: Rules = field(default_factory=Rules)

    async def tick(self) -> None:
        """Look at every live request twice a second: one timer instead of several each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            for number, request in enumerate(tuple(self.live), 1):
                request.tick(now)
                if number % TICKED_AT_ONCE == 0:
                    await asyncio.sleep(0)  # or each event would wait for all of them
            self.observe()
            if self.fleet.is_held:
                self._turn_away_measured()
            self.upstream.sweep()

    def _turn_away_measured(self) -> None:
        """Tell those in line when a card that is measured is back; they need not wait for it."""
        for request in tuple(self.live):
            until = self.fleet.measured_until(request.pool_name)
            if until is not None:
                request.leave_queue(errors.measuring(until))

    def observe(self) -> None:
        """Set the metrics that tell of this moment; another process may show them."""
        metrics = self.metrics
        metrics.flush()
        metrics.live.set(len(self.live))
        metrics.resent.inc(self.upstream.take_resent())
        metrics.usage_lost.inc(self.outbox.take_given_up())
        metrics.buffered.set(self.buffers.held)
        metrics.outbox.set(self.outbox.waiting)
        metrics.directory_age.set(min(self.directory.age_s, 1e6))

    def stop(self, request_id: str) -> None:
        """End a request its owner does not want any more, if it is one of this process."""
        for request in tuple(self.live):
            if request.request_id == request_id:
                request.stop(errors.stopped())

    def cut(self) -> None:
        """End what still runs: the time for the drain is up."""
        for request in tuple(self.live):
            request.stop(errors.shutting_down())

    def drain(self) -> None:
        """Take nothing new; what waits is told to come back, what runs may finish."""
        self.draining = True
        for request in tuple(self.live):
            request.leave_queue(errors.shutting_down())
