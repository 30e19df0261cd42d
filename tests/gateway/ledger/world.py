"""Random histories of a ledger, each step judged by the test's own books."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gateway.core.types import Charge, Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from tests.gateway.ledger.books import BATCH, INTERACTIVE, POOL, Books, Known, Violation, hold
from tests.gateway.ledger.stores import START_MS, Driver, LuaStore, MemoryTwin, plain

__all__ = ["History", "Sizes", "Violation"]


@dataclass(frozen=True)
class Sizes:
    """What a history plays with."""

    weights: bool = True
    prompts: bool = True
    sessions: bool = False
    caps_change: bool = True
    health_changes: bool = True
    gateways: int = 1
    chat: float = 0.66  # part of the tickets that are interactive
    quotas: bool = False
    patient: bool = False  # nobody's time in the queue is short, and much time passes


class History:
    """Plays random operations on one or two stores and judges what comes of them."""

    def __init__(self, stores: list[LuaStore | MemoryTwin], rng: random.Random, sizes: Sizes):
        self.rng, self.sizes, self.books = rng, sizes, Books()
        # With several processes what one causes for another is heard late: no order to judge.
        self.books.judges = sizes.gateways == 1
        self.names = [f"g{i}" for i in range(sizes.gateways)]
        self.drivers = {n: [Driver(store, n) for store in stores] for n in self.names}
        self.keys = [(f"k{i}", f"u{i % 4}") for i in range(8)]
        # An application key: several people's tickets come under it, and its cap is over all.
        self.keys += [("shared", user) for user in ("u0", "u1", "u9")]
        self.version = 1
        self._register()

    def _register(self) -> None:
        b = self.books
        policy = PoolPolicy(POOL, 1, None, None, 60_000, 1000, 1000)
        operations: list[op.Operation] = [op.WritePool(policy)]
        for i in range(self.rng.choice([1, 2, 2, 3])):
            name = f"r{i}"
            b.slots[name], b.accepts[name] = self.rng.choice([1, 2, 4, 8]), True
            b.prefill[name] = self.rng.choice([8192, 32_768])
            replica = ReplicaPolicy(name, 1, POOL, b.slots[name], b.prefill[name])
            operations.append(op.WriteReplica(replica))
        for key, user in self.keys:
            b.key_cap[key] = self.rng.choice([1, 2, 2, 3])
            b.key_is_default[key] = self.rng.random() < 0.5
            caps = KeyPolicy(key, 1, True, b.key_cap[key], 1000, b.key_is_default[key])
            operations.append(op.WriteKey(caps))
            for cls in ServiceClass:
                cap = b.user_cap[(user, cls)] = self.rng.choice([None, None, 1, 2, 3])
                operations.append(op.WriteUser(UserPolicy(user, cls, 1, cap, 1000)))
        self._send(self.names[0], *operations)

    # Playing

    def play(self, steps: int) -> None:
        for _ in range(steps):
            gateway = self.rng.choice(self.names)
            count = self.rng.choice([0, 1, 1, 1, 2, 5])
            self._send(gateway, *(o for _ in range(count) for o in self._operation(gateway)))

    def drain(self) -> None:
        """End everything: each ticket must come to exactly one end (17)."""
        for _ in range(400):
            if not (self.books.waiting or self.books.running):
                break
            for name in self.names:
                mine = [k for k in self.books.running.values() if k.gateway == name]
                self._send(name, *(self._release(k) for k in mine))
            if not self.books.running:
                self._send(self.names[0], op.Advance(10_000))
        hold(not self.books.waiting, "tickets are left waiting at the end (17)")

    def _operation(self, gateway: str) -> list[op.Operation]:
        roll, b = self.rng.random(), self.books
        if self.sizes.gateways > 1 and roll < 0.03:
            self._adopt(gateway)
            return []
        mine = [k for k in b.running.values() if k.gateway == gateway]
        queued = [k for k in b.waiting.values() if k.gateway == gateway]
        if roll < 0.42:
            return [op.Enqueue(self._ticket())]
        if roll < 0.66:
            return [self._release(self.rng.choice(mine))] if mine else []
        if roll < 0.72:
            return [op.Cancel(self.rng.choice(queued).ticket.ticket_id)] if queued else []
        if roll < 0.77:
            return [op.PutBack(self.rng.choice(mine).ticket.ticket_id)] if mine else []
        if roll < 0.84:
            return [op.PrefillDone(self.rng.choice(mine).ticket.ticket_id)] if mine else []
        if roll < 0.93:
            steps = [250, 300_000, 600_000] if self.sizes.patient else [1, 3_000, 20_000, 61_000]
            return [op.Advance(self.rng.choice(steps))]
        return self._change()

    def _adopt(self, gateway: str) -> None:
        """Let a process tell all it has anew, as it does when the ledger has lost something."""
        b = self.books
        running = [k for k in b.running.values() if k.gateway == gateway]
        queued = [k for k in b.waiting.values() if k.gateway == gateway and k.seq]
        facts: list[op.Operation] = [
            op.Hold(k.ticket, k.replica, k.seq, k.arrived_ms, k.since_ms, b.now_ms, 5000,
                    k.reading > 0)
            for k in running
        ]  # fmt: skip
        facts += [op.Wait(k.ticket, k.seq, k.arrived_ms, k.since_ms) for k in queued]
        facts += [self._release(k) for k in running[:1]]
        for k in running[:1]:
            b.leave(k.ticket.ticket_id, "released")
        for k in [k for k in b.waiting.values() if k.gateway == gateway and not k.seq]:
            b.leave(k.ticket.ticket_id, "forgotten")
        answers = [d.send(*facts, adopts=True) for d in self.drivers[gateway]]
        self._compare(answers)
        for result in answers[0]:
            self._hear(result)

    def _change(self) -> list[op.Operation]:
        b = self.books
        self.version += 1
        if self.rng.random() < 0.5 and self.sizes.caps_change:
            key, user = self.rng.choice(self.keys)
            cls, cap = self.rng.choice(list(ServiceClass)), self.rng.choice([1, 2, 3, 4])
            caps = KeyPolicy(key, self.version, True, cap, 1000, b.key_is_default[key])
            cap_of_user = self.rng.choice([None, 1, 2, 3, 5])
            user_caps = UserPolicy(user, cls, self.version, cap_of_user, 1000)
            return [op.WriteKey(caps), op.WriteUser(user_caps)]
        if not self.sizes.health_changes:
            return []
        return [op.Observe(self.rng.choice(list(b.slots)), accepts=self.rng.random() < 0.7)]

    def _ticket(self) -> Ticket:
        b, rng = self.books, self.rng
        key, user = rng.choice(self.keys)
        cls = INTERACTIVE if rng.random() < self.sizes.chat else BATCH
        prompt = rng.choice([0, 100, 3000, 5000, 9000]) if self.sizes.prompts else 0
        session = rng.choice(["", "s1", "s2"]) if self.sizes.sessions else ""
        order = tuple(sorted(b.slots, reverse=session == "s2")) if session else ()
        weight = rng.choice([1, 1, 1, 1, 2, 3]) if self.sizes.weights else 1
        b.arrivals += 1
        return Ticket(
            f"t{b.arrivals:05d}", key, user, cls, POOL, weight, prompt, rng.choice([1, 50, 900]),
            order, session, 10**8 if self.sizes.patient else rng.choice([61_000, 3_600_000]),
            charges=self._charges(user) if self.sizes.quotas else (), group=self._group(user),
        )  # fmt: skip

    def _group(self, user: str) -> str:
        return ""

    def _charges(self, user: str) -> tuple[Charge, ...]:
        tokens = self.rng.choice([1, 50, 900, 4000])
        end_ms = START_MS + 10**9
        return (
            Charge(f"requests|{user}", 5, 1, settles=False),
            Charge(f"tokens|{user}", 3000, tokens),
            Charge(f"day|{user}", 20_000, tokens, "2026-11-29", end_ms, floor=500),
        )

    def _release(self, known: Known) -> op.Operation:
        outcome = Outcome.SERVED if self.rng.random() < 0.8 else Outcome.FAILED
        return op.Release(
            known.ticket.ticket_id,
            outcome,
            self.rng.choice([0, 50, 4000]),
            self.rng.choice([1, 700]),
            self.rng.choice([1, 200, 5000]),
        )

    # Telling the stores and the books

    def _send(self, gateway: str, *operations: op.Operation) -> None:
        """Send operations one by one, so that the books stand as the ledger did at each."""
        chosen = self._unique(operations)
        for operation in chosen or [op.Beat()]:
            answers = [driver.send(operation) for driver in self.drivers[gateway]]
            self._compare(answers)
            turned = [r.ticket_id for r in answers[0] if isinstance(r, op.Turned)]
            # A cancel may come to one whose time was over: its call has put that out first.
            if not (isinstance(operation, op.Cancel) and operation.ticket_id in turned):
                self._note(gateway, operation)
            for result in answers[0]:
                self._hear(result)
            if self.books.judges:
                self.books.judge_rest()

    @staticmethod
    def _compare(answers: list[tuple[op.Result, ...]]) -> None:
        grants = [_grants(answer) for answer in answers]
        hold(all(g == grants[0] for g in grants), f"the ledgers differ: {grants}")

    @staticmethod
    def _unique(operations: tuple[op.Operation, ...]) -> list[op.Operation]:
        """Drop a second ending of the same ticket in one call; the test ends each once."""
        seen: set[str] = set()
        kept: list[op.Operation] = []
        for operation in operations:
            name = getattr(operation, "ticket_id", None)
            if name in seen:
                continue
            if name:
                seen.add(name)
            kept.append(operation)
        return kept

    def _note(self, gateway: str, operation: op.Operation) -> None:
        b = self.books
        match operation:
            case op.Enqueue(ticket=ticket):
                simple = ticket.weight == 1 and not ticket.prefill_tokens and not ticket.session
                b.waiting[ticket.ticket_id] = Known(
                    ticket, int(ticket.ticket_id[1:]), b.now_ms, gateway=gateway, is_simple=simple,
                    since_ms=b.now_ms if ticket.service_class is INTERACTIVE else None,
                )  # fmt: skip
            case op.Release(ticket_id=ticket_id) if ticket_id in b.running:
                b.leave(ticket_id, "released")
            case op.Cancel(ticket_id=ticket_id) if ticket_id in b.waiting:
                b.cancelled[ticket_id] = b.waiting[ticket_id]
                b.leave(ticket_id, "cancelled")
            case op.PutBack(ticket_id=ticket_id) if ticket_id in b.running:
                known = b.running.pop(ticket_id)
                known.replica, known.reading = "", 0
                b.waiting[ticket_id] = known
            case op.PrefillDone(ticket_id=ticket_id) if ticket_id in b.running:
                b.running[ticket_id].reading = 0
            case op.Advance(ms):
                b.now_ms += ms
                b.overdue = [
                    name
                    for name, k in b.waiting.items()
                    if k.arrived_ms + k.ticket.ttl_ms <= b.now_ms
                ]
            case op.WriteKey(policy):
                b.key_cap[policy.key_id] = policy.in_flight
            case op.WriteUser(policy):
                b.user_cap[(policy.user_id, policy.service_class)] = policy.in_flight
            case op.Observe(replica_id, accepts):
                b.accepts[replica_id] = accepts
            case _:
                pass

    def _hear(self, result: op.Result) -> None:
        b = self.books
        match result:
            case op.Started():
                b.start(result)
            case op.Queued() if result.ticket_id in b.waiting:
                known = b.waiting[result.ticket_id]
                if known.since_ms is not None:
                    hold(known.since_ms == result.ageing_since_ms, "an age moved (4)")
                known.since_ms, known.seq = result.ageing_since_ms, result.seq
            case op.Turned():
                b.leave(result.ticket_id, result.code)
            case _:
                pass


def _grants(results: tuple[op.Result, ...]) -> list[object]:
    return [plain(r) for r in results if isinstance(r, op.Started | op.Turned | op.Told)]
