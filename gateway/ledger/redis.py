"""The ledger any number of gateway processes share: everything that limits or orders is in Redis.

One connection, one call under way; what arrives meanwhile goes into the next (batch.py). The
script (lua/) decides; this shell keeps time, connections and waiters. While Redis is away
nothing starts and nothing is forgotten: releases are kept and told when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hiredis

from gateway.core.types import (
    Charge,
    LedgerView,
    Outcome,
    QuotaState,
    Settlement,
    Ticket,
)
from gateway.ledger import forecast, lines, recount, snapshot, wire
from gateway.ledger import operations as op
from gateway.ledger.batch import Batch
from gateway.ledger.interface import Refused
from gateway.ledger.script import SCRIPT, SHA
from gateway.ledger.shell import HEARTBEAT_S, TICK_S, LedgerShell, Recorded
from gateway.ledger.state import LedgerState
from gateway.ledger.waiting import Waiter

log = logging.getLogger(__name__)

PREFIX = "{l}:"
KEYS = PREFIX + "2:"  # before the names of the ledger's own keys; see call.lua

#: How long Redis may be away before new and waiting tickets are told so.
PATIENCE_S = 1.0
WAITING_PATIENCE_S = 5.0
RETRY_AFTER_MS = 5_000
RECONNECT_S = 0.05
#: How long what nobody here waits for may wait for company: the next request of a client that has
#: just been answered comes sooner, and would else wait for the answer to a call of its own.
COMPANY_S = 0.005
#: Errors of a server that did nothing and will answer again: loading, failing over, disk or memory
#: full (the first write of the script is refused, so the same call may be sent again).
TRANSIENT = (
    "LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "READONLY", "CLUSTERDOWN", "MISCONF", "OOM",
)  # fmt: skip
RECOUNT_S = 60.0
VIEW_TIMEOUT_S = 2.0


class RedisLedger(LedgerShell):
    """The `Ledger` of one process among many."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        alone: bool = False,
        test_switch: bool = False,
        frozen: bool = False,
        start_ms: int = 0,
        prefix: str = PREFIX,
        recorded: Recorded | None = None,
    ) -> None:
        super().__init__(recorded)
        # A process that was killed and started again is another one: what it held is not ours.
        self.name = f"{name}{'-' if name else ''}{secrets.token_hex(4)}"
        self.batch = Batch(self.name)
        self.batch.known_ms = start_ms
        self._url, self._prefix = url, prefix
        self._flags = ("1" if alone else "") + ("t" if test_switch else "")
        self._flags += "f" if frozen else ""
        self._run_id = ""
        self._connection: wire.Connection | None = None
        self._listener: wire.Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._connected = asyncio.Event()
        self._lost = asyncio.Event()
        self._away_since: float | None = None
        self._is_pump_due = False
        self._is_urgent = False  # something that is pending does not wait for company
        self._waits_for_company: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._rows: list[op.Row] = []
        self._looking: asyncio.Future[list[op.Row]] | None = None
        self.script_errors = 0

    # Life

    async def start(self) -> None:
        """Begin to keep the connection; calls made before it stands are kept."""
        self._away_since = self._loop.time()
        self._tasks = [
            asyncio.create_task(self._keep_connected(), name="ledger connection"),
            asyncio.create_task(self._tick(), name="ledger tick"),
            asyncio.create_task(self._listen(), name="ledger pokes"),
            asyncio.create_task(self._audit(), name="ledger recount"),
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._connected.wait()

    async def close(self) -> None:
        """Turn away what waits, tell the last releases, and leave."""
        outcome = Outcome.EVICTED_SHUTTING_DOWN
        self._turn_all_away(Refused("shutting_down", outcome=outcome), outcome)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._quiet()
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in (self._connection, self._listener):
            if connection is not None:
                connection.close()

    async def _quiet(self) -> None:
        """Wait until the ledger has confirmed all that was told."""
        while True:
            if not (self.batch.has_pending or self.batch.is_waiting):
                return
            await asyncio.sleep(0.01)

    async def _keep_connected(self) -> None:
        while True:
            self._lost = asyncio.Event()
            connection = await self._opened()
            if connection is None:
                await asyncio.sleep(RECONNECT_S)
                continue
            self._connection, self._away_since = connection, None
            self._connected.set()
            self._resend()
            await self._lost.wait()
            self._connection = None
            self._connected.clear()
            self._away_since = self._loop.time()

    async def _opened(self) -> wire.Connection | None:
        """Return a new connection to the store, None while it is away."""
        try:
            connection = await wire.connect(self._url, self._lost.set)
            self._run_id = _run_id(await connection.ask("INFO", "server"))
            await connection.ask("SCRIPT", "LOAD", SCRIPT)
        except (OSError, hiredis.HiredisError) as error:
            log.debug("the ledger's store is away: %s", error)
            return None
        return connection

    async def _listen(self) -> None:
        """Hear that others' calls did something for us: only a hint, the tick would find it."""
        while True:
            try:
                lost = asyncio.Event()
                self._listener = await wire.connect(self._url, lost.set)
                await self._listener.ask("SUBSCRIBE", f"{self._prefix}poke:{self.name}")
                self._listener.on_push = lambda _: self._beat()
                await lost.wait()
            except (OSError, hiredis.HiredisError):
                pass
            await asyncio.sleep(RECONNECT_S)

    async def _tick(self) -> None:
        """Beat while anything waits here, and each second anyway."""
        loop, beaten = self._loop, 0.0
        while True:
            await asyncio.sleep(TICK_S)
            if self._away_since is not None and (
                loop.time() - self._away_since > WAITING_PATIENCE_S
            ):
                self._turn_all_away(_unavailable(), Outcome.EVICTED_NO_REPLICA)
            if self.batch.has_queued or loop.time() - beaten >= HEARTBEAT_S - TICK_S / 2:
                beaten = loop.time()
                self._beat()

    async def _audit(self) -> None:
        """Recount every minute, and soon after each adoption."""
        adoptions = 0
        while True:
            for _ in range(round(RECOUNT_S)):
                await asyncio.sleep(1.0)
                if adoptions != self.batch.adoptions:
                    break
            adoptions = self.batch.adoptions
            with suppress(Refused):
                await self.recount()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    # Tickets

    def admit(self, ticket: Ticket, waiter: Waiter) -> None:
        """Queue the ticket; while Redis is away it is refused, for nobody can say who is next."""
        if self._is_away:
            waiter.refused(_unavailable())
        else:
            super().admit(ticket, waiter)

    async def quota(self, charges: tuple[Charge, ...]) -> tuple[QuotaState, ...]:
        """Return where counted limits stand; while Redis is away nobody can say."""
        if self._is_away:
            raise _unavailable()
        return await super().quota(charges)

    @property
    def _is_away(self) -> bool:
        """Tell whether Redis has been away for longer than our patience."""
        since = self._away_since
        return since is not None and self._loop.time() - since > PATIENCE_S

    def release(self, ticket_id: str, settlement: Settlement) -> None:
        """End a lease once; the second time, or for an unknown id, nothing happens."""
        if self.batch.may_release(ticket_id):
            super().release(ticket_id, settlement)

    # Calls

    def _send(self, operation: op.Operation) -> None:
        self.batch.add(operation)
        # What ends or frees something can only serve who waits; those elsewhere do not mind.
        if not self._waiters and isinstance(operation, (op.Release, op.PrefillDone)):
            if self._waits_for_company is None:
                self._waits_for_company = self._loop.call_later(COMPANY_S, self._hurry)
            return
        self._is_urgent = True
        if not self._is_pump_due and not self.batch.is_waiting:
            # At the end of this turn of the loop, so that what happens together goes together.
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _hurry(self) -> None:
        """Wait no longer for company."""
        self._waits_for_company = None
        self._is_urgent = True
        self._pump()

    def _pump(self) -> None:
        self._is_pump_due = False
        if self.batch.has_pending:
            self._beat()

    def _beat(self) -> None:
        """Send what is pending, or nothing but a sign of life."""
        if self._connection is None:
            return
        call = self.batch.next_call()
        if call is not None:
            self._write(call)

    def _resend(self) -> None:
        call = self.batch.again()
        if call is not None:
            self._write(call)
        else:
            self._beat()

    def _write(self, call: op.Call) -> None:
        if self._connection is None:
            return
        # Of a long adoption the rest follows at once.
        self._is_urgent = self.batch.has_pending
        arguments: list[str | bytes] = [
            "EVALSHA", SHA, "1", self._prefix, call.gateway, str(call.previous),
            str(call.sequence), self._flags + ("a" if call.adopts else ""), self._run_id,
            str(self.batch.known_ms),
        ]  # fmt: skip
        for operation in call.operations:
            for line in lines.encode(operation):
                arguments += line
        self._connection.send(self._answered, *arguments)

    def _answered(self, answer: Any) -> None:
        if isinstance(answer, bytes):
            self._away_since = None
            results = self.batch.answer(lines.decode(answer))
            call = self.batch.again()
            if call is not None:
                self._write(call)  # an adoption
            elif self._is_urgent:
                self._beat()  # before anybody is woken: the round trip overlaps the wake-ups
            self._take(results)
        elif isinstance(answer, ConnectionError):
            pass  # the call is sent again when the connection stands
        else:
            self._failed(str(answer))

    def _failed(self, error: str) -> None:
        """Try again what a server not ready refused; adopt after an error in the script."""
        if error.startswith("NOSCRIPT") and self._connection is not None:
            self._connection.send(lambda _: self._resend(), "SCRIPT", "LOAD", SCRIPT)
            return
        if error.startswith(TRANSIENT):
            # As good as away: whoever waits longer than our patience is told so.
            if self._away_since is None:
                self._away_since = self._loop.time()
                log.warning("the ledger's store takes no writes: %s", error)
        else:
            self.script_errors += 1
            log.error("the ledger's script failed: %s", error)
            self.batch.give_up()
        self._loop.call_later(TICK_S, self._resend)

    def _take(self, results: Any) -> None:
        if self._looking is not None and not self._looking.done():
            rows = [r for r in results if isinstance(r, op.Row)]
            if rows:
                self._looking.set_result(rows)
        super()._take(results)

    # Looking

    async def view(self) -> LedgerView:
        """Return the whole picture; also recounts everything the ledger counts."""
        state, homes = await self.recount()
        # Looking ahead costs a second with a full queue; streams must not wait for it.
        return await asyncio.to_thread(forecast.view, state, homes, is_open=self.batch.is_open)

    async def glance(self) -> LedgerView:
        """Return the picture without expected waits and positions."""
        state, rows = await self._state()
        return forecast.glance(state, snapshot.homes_of(rows), is_open=self.batch.is_open)

    async def recount(self) -> tuple[LedgerState, dict[str, str]]:
        """Hold every count against a recount of the entries; returns what was looked at."""
        state, rows = await self._state()
        self.mismatches = [*recount.mismatches(state), *snapshot.wrong_heads(state, rows)]
        if self.mismatches:
            log.error("the ledger does not add up: %s", self.mismatches)
        return state, snapshot.homes_of(rows)

    async def _state(self) -> tuple[LedgerState, Sequence[op.Row]]:
        """Return a dump of the ledger; callers at the same moment share one."""
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_future()
            self._send(op.Look())
        try:
            async with asyncio.timeout(VIEW_TIMEOUT_S):
                rows = await asyncio.shield(self._looking)
        except TimeoutError:
            raise _unavailable() from None
        return await snapshot.state_in_parts(rows), rows


def _run_id(info: bytes) -> str:
    for line in info.decode().splitlines():
        if line.startswith("run_id:"):
            return line.removeprefix("run_id:").strip()
    return "unknown"


def _unavailable() -> Refused:
    return Refused("scheduler_unavailable", retry_after_ms=RETRY_AFTER_MS)
