"""The ledger in one process's memory: the readable reference of docs/scheduler.md.

Rule 1: one door. `call` takes a gateway's operations and returns what came of them; nothing else
changes the state.
Rule 2: no clock and no I/O; the time that has passed is handed in.
Rule 3: after every operation everything that may start has been started.

Tests, simulations, forecasts and single processes use it as it is; the script (`lua/`) does the
same work for any number of processes, and random histories hold the two against each other.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.core import sharing
from gateway.core.types import LedgerView, Outcome
from gateway.ledger import forecast
from gateway.ledger import operations as op
from gateway.ledger.desk import Desk
from gateway.ledger.dispatch import Dispatcher
from gateway.ledger.interface import Refused
from gateway.ledger.registry import Registry
from gateway.ledger.shell import TICK_S, LedgerShell
from gateway.ledger.state import Entry, LedgerState, Rules, add

#: Ledger time moves at most this much in a call, whatever a clock did meanwhile.
LONGEST_STEP_MS: Final = 1_000
Results = list[op.Result]
#: Tickets put out of the queue in one call; the rest follow at the next.
MOST_EVICTIONS: Final = 256


@dataclass(slots=True)
class Gateway:
    """One gateway process as the ledger knows it."""

    heard_ms: int
    sequence: int = 0
    must_adopt: bool = False
    inbox: Results = field(default_factory=list)
    #: Records to append as interrupted if it never comes back: queued when it fell silent.
    set_aside: list[bytes] = field(default_factory=list)


class MemoryStore:
    """A ledger without sockets: calls in, replies out."""

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        test_switch: bool = False,
        start_ms: int = 0,
        append_usage: Callable[[bytes], str] = lambda record: "",
    ) -> None:
        self.state = LedgerState(rules or Rules())
        self.state.now_ms = start_ms
        self.state.decayed_at = start_ms // sharing.HALF_LIFE_STEP_MS
        self.desk = Desk(self.state, self._post, append_usage)
        self.registry = Registry(self.state, self.desk)
        self.gateways: dict[str, Gateway] = {}
        self.opens_at_ms = start_ms
        self._dispatcher = Dispatcher(self.state, self.desk.home, self.desk.started)
        self.desk.start_at_once = self._start_at_once
        self._verbs = self._by_verb()
        self._swept_ms = -1
        self._test_switch = test_switch
        self._append_usage = append_usage

    @property
    def is_open(self) -> bool:
        return self.state.now_ms >= self.opens_at_ms

    # The door

    def call(self, call: op.Call, elapsed_ms: int = 0) -> op.Reply:
        """Apply one call of a gateway and return its results, those from its inbox first."""
        self._pass_time(elapsed_ms)
        gateway = self.gateways.get(call.gateway) or Gateway(self.state.now_ms)
        if not self._is_expected(gateway, call):
            return op.Reply(
                call.sequence,
                self.state.now_ms,
                self.is_open,
                must_adopt=True,
                stands_at=gateway.sequence,
            )
        self.gateways[call.gateway] = gateway
        gateway.sequence = call.sequence
        if call.adopts:
            self._drop_all(call.gateway)
            gateway.must_adopt = False
            gateway.inbox.clear()
            gateway.set_aside.clear()
        answers = self._do(call.gateway, gateway, call.operations, adopts=call.adopts)
        return op.Reply(call.sequence, self.state.now_ms, self.is_open, tuple(answers))

    def step(self, name: str, operations: Sequence[op.Operation], elapsed_ms: int) -> Results:
        """Do as `call` for the only process there is, which loses nothing on the way."""
        self._pass_time(elapsed_ms)
        gateway = self.gateways.get(name)
        if gateway is None:
            gateway = self.gateways[name] = Gateway(self.state.now_ms)
        return self._do(name, gateway, operations)

    def _do(
        self, name: str, gateway: Gateway, operations: Sequence[op.Operation], adopts: bool = False
    ) -> Results:
        gateway.heard_ms = self.state.now_ms
        self.desk.caller = name
        self.desk.answers = self._fetch_inbox(gateway) if gateway.inbox else []
        if self._swept_ms != self.state.now_ms:
            self._sweep()
        # Of an adoption nothing may start before all its leases are told: they are in use.
        flows = self.state.flows  # without any there is nothing to start
        if flows and not adopts:
            self._dispatch()
        for operation in operations:
            if isinstance(operation, op.Enqueue):  # these two come with every request
                self.desk.enqueue(operation)
            elif isinstance(operation, op.Release):
                self.desk.release(operation)
            else:
                self._verbs[type(operation)](operation)
            if flows and not isinstance(operation, op.Hold):
                self._dispatch()
        if adopts:
            self._dispatch()
            self._swept_ms = -1  # what was told may be overdue already
        return self.desk.answers

    @staticmethod
    def _is_expected(gateway: Gateway, call: op.Call) -> bool:
        """Tell whether the call follows the last one; an adoption may come at any time, once."""
        if call.adopts:
            return gateway.sequence != call.sequence
        return gateway.sequence == call.previous and not gateway.must_adopt

    def _by_verb(self) -> dict[type, Callable[[Any], None]]:
        desk, registry = self.desk, self.registry
        return {
            op.Cancel: lambda o: desk.cancel(o.ticket_id),
            op.PutBack: self._put_back,
            op.PrefillDone: lambda o: desk.prefill_done(o.ticket_id),
            op.WriteKey: lambda o: registry.write_key(o.policy),
            op.WriteUser: lambda o: registry.write_user(o.policy),
            op.WritePool: lambda o: registry.write_pool(o.policy),
            op.WriteReplica: lambda o: registry.write_replica(o.policy),
            op.RemoveReplica: lambda o: registry.remove_replica(o.replica_id),
            op.Observe: lambda o: registry.observe(desk.caller, o),
            op.Advance: lambda o: self._advance(o.ms),
            op.Hold: desk.adopt_lease,
            op.Wait: desk.adopt_queued,
            op.Peers: lambda _: None,  # it forgets nothing, so it waits for nobody
            op.Ask: lambda o: desk.tell_limits("", o.charges),
            op.Beat: lambda _: None,
            op.Look: lambda _: None,
        }

    def _put_back(self, put_back: op.PutBack) -> None:
        self.desk.put_back(put_back)
        self._swept_ms = -1  # what came back may be overdue already

    def _start_at_once(self, entry: Entry) -> bool:
        is_open = self.state.now_ms >= self.opens_at_ms
        return is_open and self._dispatcher.start_at_once(entry)

    def _dispatch(self) -> None:
        if self.is_open:
            self._dispatcher.run()

    def _post(self, gateway: str, result: op.Result) -> None:
        if gateway in self.gateways:
            self.gateways[gateway].inbox.append(result)

    def _fetch_inbox(self, gateway: Gateway) -> Results:
        """Hand over what others' calls did for this process; its grants are accepted by that."""
        waiting, gateway.inbox = gateway.inbox, []
        for result in waiting:
            if isinstance(result, op.Started) and result.ticket_id in self.state.entries:
                self.state.entries[result.ticket_id].is_accepted = True
        return waiting

    def homes(self) -> dict[str, str]:
        """Return the replica that each session with a request here is bound to."""
        state, homes = self.state, self.desk.homes
        sessions = {entry.ticket.session for entry in state.entries.values()}
        return {one: home for one in sessions if (home := homes.of(one, state.now_ms))}

    # Time

    def _pass_time(self, elapsed_ms: int) -> None:
        """Move ledger time; when nobody called for long, nobody is late."""
        if elapsed_ms <= 0:
            return
        state = self.state
        state.now_ms += min(elapsed_ms, LONGEST_STEP_MS)
        if elapsed_ms >= state.rules.limit_ms // 2:
            for gateway in self.gateways.values():
                gateway.heard_ms = state.now_ms

    def _advance(self, ms: int) -> None:
        if not self._test_switch or ms <= 0:
            return
        self.state.now_ms += ms
        for gateway in self.gateways.values():
            gateway.heard_ms += ms
        self._sweep()

    def _sweep(self) -> None:
        """Do what time alone brings: decay, silence, reap, timeouts."""
        state, rules = self.state, self.state.rules
        self._swept_ms = state.now_ms
        if state.now_ms // sharing.HALF_LIFE_STEP_MS != state.decayed_at:
            self._decay()
        latest = state.now_ms - rules.silence_ms
        for name in sorted(n for n, g in self.gateways.items() if g.heard_ms <= latest):
            if state.now_ms - self.gateways[name].heard_ms >= rules.limit_ms:
                self._reap(name)
            else:
                self._silence(name)
        if self.desk.places.kept:
            self.desk.places.expire(state.now_ms)
        for entry in self.desk.overdue(MOST_EVICTIONS):
            self.desk.evict(entry)

    def _decay(self) -> None:
        state = self.state
        minute = state.now_ms // sharing.HALF_LIFE_STEP_MS
        steps, state.decayed_at = minute - state.decayed_at, minute
        if steps <= 0:
            return
        for user in list(state.service):
            state.service[user] = sharing.decay(state.service[user], steps)
            if not state.service[user]:
                del state.service[user]
        for entry in state.entries.values():
            charge = sharing.decay(entry.charge, steps)
            add(state.user_charged, entry.user, charge - entry.charge)
            entry.charge = charge

    # Processes

    def _silence(self, name: str) -> None:
        """Take the queue entries and unread grants of a process that has stopped calling.

        Without this a killed process's queue would swallow every slot that comes free until its
        leases are reaped. If it lives, its next call must adopt, and its tickets return with
        their rank and at their old sequence.
        """
        gateway = self.gateways[name]
        gone = [e for e in self._entries_of(name) if not (e.replica_id and e.is_accepted)]
        if not gone:
            return
        gateway.must_adopt = True
        gateway.inbox.clear()
        for entry in gone:
            gateway.set_aside.append(entry.ticket.interrupted)
            self._drop(entry)

    def _reap(self, name: str) -> None:
        """Free what belonged to a process not heard for the limit; its records say interrupted."""
        gateway = self.gateways.pop(name)
        for entry in self._entries_of(name):
            if entry.ticket.interrupted:
                self._append_usage(on_replica(entry.ticket.interrupted, entry.replica_id))
            self._drop(entry, keeps_charge=entry.is_accepted)
        for record in filter(None, gateway.set_aside):
            self._append_usage(record)
        self.registry.forget_gateway(name)

    def _drop_all(self, name: str) -> None:
        for entry in self._entries_of(name):
            self._drop(entry)

    def _drop(self, entry: Entry, *, keeps_charge: bool = False) -> None:
        if not entry.replica_id:
            self.desk.drop_queued(entry)
            return
        tokens = 0
        if keeps_charge:
            # What it really used died with its process; the estimate of its service is kept.
            tokens = sharing.estimated_tokens(entry.ticket)
        else:
            add(self.state.service, entry.user, -entry.charge)
        self.desk.quotas.settle(entry.ticket.charges, tokens, self.state.now_ms)
        self.state.unhold(entry)
        self.state.leave(entry)

    def _entries_of(self, name: str) -> list[Entry]:
        mine = [e for e in self.state.entries.values() if e.gateway == name]
        return sorted(mine, key=lambda e: e.seq)


def on_replica(record: bytes, replica_id: str) -> bytes:
    """Write where it ran into the usage record prepared when the ticket came."""
    return record.replace(b'"replica_id":""', b'"replica_id":"' + replica_id.encode() + b'"', 1)


class MemoryLedger(LedgerShell):
    """The `Ledger` of a single process: what one turn of the loop brings is one step."""

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        test_switch: bool = False,
        append_usage: Callable[[bytes], None] = lambda record: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.store = MemoryStore(
            rules,
            test_switch=test_switch,
            start_ms=time.time_ns() // 1_000_000,
            append_usage=self._append,
        )
        self._append_usage = append_usage
        self._clock = clock
        self._name = secrets.token_hex(4)
        self._seen_ms = int(clock() * 1000)
        self._pending: list[op.Operation] = []
        self._ticking: asyncio.Task[None] | None = None

    def _append(self, record: bytes) -> str:
        self._append_usage(record)
        return ""

    def _send(self, operation: op.Operation) -> None:
        if not self._pending:
            # At the end of this turn of the loop, so that what happens together goes together. One
            # step for all costs less, and so does everything around it: the same code runs for
            # many requests in a row, not all of it for one after the other.
            self._loop.call_soon(self._pump)
        self._pending.append(operation)

    def _pump(self) -> None:
        if self._pending:
            self._step()

    def _step(self) -> None:
        """Do what is pending, and what the time that has passed brings."""
        operations, self._pending = self._pending, []
        now_ms = int(self._clock() * 1000)
        elapsed_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        self._take(self.store.step(self._name, operations, elapsed_ms))

    async def view(self) -> LedgerView:
        self._step()
        # Looking ahead costs a second with a full queue; streams must not wait for it.
        twin, homes = forecast.copy(self.store.state), self.store.homes()
        return await asyncio.to_thread(forecast.view, twin, homes, is_open=self.store.is_open)

    async def glance(self) -> LedgerView:
        self._step()
        return forecast.glance(self.store.state, self.store.homes(), is_open=self.store.is_open)

    async def start(self) -> None:
        """Let time pass by itself: timeouts and spills need no arrivals to happen."""
        self._ticking = asyncio.create_task(self._tick(), name="ledger tick")

    async def close(self) -> None:
        """Stop ticking and turn away what still waits."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        outcome = Outcome.EVICTED_SHUTTING_DOWN
        self._turn_all_away(Refused("shutting_down", outcome=outcome), outcome)
        self._pump()  # the last releases bring their records

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._step()
