"""Properties of docs/scheduler.md that need a story of their own, each on any number of ledgers.

A court plays one story on all its ledgers at once and holds their grants against each other; the
story then judges what was granted by its own books. `test_properties.py` plays them on both
ledgers, `test_planted.py` on a script with one rule taken out.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable

from gateway.core.types import Outcome, ServiceClass, Ticket
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryStore
from tests.gateway.ledger.books import BATCH, INTERACTIVE, hold
from tests.gateway.ledger.stores import Driver, LuaStore, plain

SECOND, HANDICAP = 1_000, 600_000
Store = LuaStore | MemoryStore


class Court:
    """One process before all ledgers at once; what they grant must be the same."""

    def __init__(self, stores: list[Store]) -> None:
        self.drivers = [Driver(store) for store in stores]
        self.now_ms = 0
        self.started_at: dict[str, int] = {}
        self.charges: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.tickets: dict[str, Ticket] = {}

    def send(self, *operations: op.Operation) -> list[str]:
        """Send and return who started, in their order."""
        answers = [driver.send(*operations) for driver in self.drivers]
        grants = [[r for r in a if isinstance(r, op.Started | op.Turned)] for a in answers]
        shown = [[plain(r) for r in found] for found in grants]
        hold(all(s == shown[0] for s in shown), f"the ledgers differ: {shown}")
        started: list[str] = []
        for result in grants[0]:
            if isinstance(result, op.Started):
                started.append(result.ticket_id)
                self.started_at[result.ticket_id] = self.now_ms
                self.charges[result.ticket_id] = result.charge
            else:
                self.ended[result.ticket_id] = result.code
        return started

    def house(self, slots: Iterable[int], budget: int = 10**9, bound: int = 1_000) -> None:
        """Open a pool with these replicas."""
        self.send(op.WritePool(PoolPolicy("m", 1, None, None, 60_000, bound, 1_000)))
        for n, count in enumerate(slots):
            self.send(op.WriteReplica(ReplicaPolicy(f"r{n}", 1, "m", count, budget)))

    def person(self, name: str, cap: int, keys: int = 1, queued: int = 1_000) -> None:
        """Let somebody in, with as many keys, in both classes."""
        for n in range(keys):
            self.send(op.WriteKey(KeyPolicy(f"{name}-{n}", 1, True, cap, queued, False)))
        for cls in ServiceClass:
            self.send(op.WriteUser(UserPolicy(name, cls, 1, cap, queued)))

    def ask(
        self, name: str, user: str, *, key: int = 0, cls: ServiceClass = INTERACTIVE,
        weight: int = 1, prompt: int = 0, output: int = 100,
    ) -> list[str]:  # fmt: skip
        """Queue a ticket."""
        ticket = Ticket(name, f"{user}-{key}", user, cls, "m", weight, prompt, output, ttl_ms=10**8)
        self.tickets[name] = ticket
        return self.send(op.Enqueue(ticket))

    def end(self, name: str, prompt: int = 0, output: int = 100) -> list[str]:
        return self.send(op.Release(name, Outcome.SERVED, prompt, output, prompt + output))

    def wait(self, ms: int) -> list[str]:
        self.now_ms += ms
        return self.send(op.Advance(ms))


def aged_batch_starts_in_time(court: Court, seed: int) -> None:
    """(6) Behind a bounded queue of chats that is always full, batch starts within its bound."""
    rng = random.Random(seed)
    slots, bound, longest = rng.choice([2, 4]), rng.choice([2, 5]), 6 * SECOND
    court.house([slots], bound=bound)
    court.person("night", 4)
    for n in range(8):
        court.person(f"u{n}", slots)
    running: deque[tuple[int, str]] = deque()
    asked = 0

    def note(names: list[str]) -> None:
        running.extend((court.now_ms + rng.choice([2, 4, 6]) * SECOND, name) for name in names)

    def flood() -> None:
        nonlocal asked
        for _ in range(2 * bound):
            asked += 1
            note(court.ask(f"c{asked}", f"u{rng.randrange(8)}"))

    flood()
    for n in range(2):
        note(court.ask(f"b{n}", "night", cls=BATCH))
    batch_slots = max(1, slots // 4)
    most = HANDICAP + (bound + 2) * longest // batch_slots + longest
    # A full queue of chats is all that matters of the first ten minutes.
    note(court.wait(HANDICAP - 30 * SECOND))
    while court.now_ms <= most and not {"b0", "b1"} <= set(court.started_at):
        for end in [r for r in running if r[0] <= court.now_ms]:
            running.remove(end)
            note(court.end(end[1]))
        flood()
        note(court.wait(2 * SECOND))
    for n in range(2):
        hold(court.started_at.get(f"b{n}", 10**9) <= most, "a batch ticket outwaited its bound (6)")


def batch_wins_the_tie(court: Court, seed: int) -> None:
    """(3) Against a fresh chat batch wins at exactly ten minutes, and not a millisecond before."""
    rng = random.Random(seed)
    court.house([1])
    for name in ("ann", "ben", "cid"):
        court.person(name, 1)
    for early_ms in (1, 0):
        holder, aged, fresh = (f"{name}{early_ms}" for name in ("holder", "aged", "fresh"))
        court.ask(holder, "ann")
        court.ask(aged, "ben", cls=BATCH)
        first_ms = rng.randrange(HANDICAP // 2)
        court.wait(first_ms)
        court.wait(HANDICAP - early_ms - first_ms)
        court.ask(fresh, "cid")
        first, second = (fresh, aged) if early_ms else (aged, fresh)
        hold(court.end(holder) == [first], f"at ten minutes less {early_ms} ms not {first} (3)")
        hold(court.end(first) == [second], f"{second} does not follow (3)")
        court.end(second)


def equals_are_served_alike(court: Court, seed: int, *, alone_first: int = 0) -> None:
    """(10, 11) Two always-busy people get the same, however many keys; idling earns nothing.

    With `alone_first` the one has been served for a while before the other comes.
    """
    rng = random.Random(seed)
    slots = rng.choice([2, 4, 6])
    # Who is behind and holds a lower cap gets no more; what is left then goes to the other.
    cap = slots
    court.house([slots])
    court.person("ann", cap, keys=3)
    court.person("ben", cap)
    keys = {"ann": rng.choice([[0], [0, 1, 2]]), "ben": [0]}
    count = {"ann": 0, "ben": 0}
    costs: dict[str, tuple[int, int]] = {}
    running: list[str] = []
    served: defaultdict[str, int] = defaultdict(int)  # milli-tokens since both are busy

    def ask(user: str) -> None:
        count[user] += 1
        name = f"{user}{count[user]}"
        prompt, output = rng.choice([10, 500, 2_000]), rng.choice([10, 200, 512])
        costs[name] = (prompt, rng.randint(1, output))
        running.extend(
            court.ask(name, user, key=rng.choice(keys[user]), prompt=prompt, output=output)
        )

    def end_one(user: str = "") -> None:
        mine = [name for name in running if name.startswith(user)]
        name = rng.choice(mine)
        running.remove(name)
        prompt, output = costs[name]
        running.extend(court.send(op.PrefillDone(name)))
        running.extend(court.end(name, prompt, output))
        served[name[:3]] += (prompt + 2 * output) * 1000

    for _ in range(40 if alone_first else 4 * slots):
        ask("ann")
    for _ in range(alone_first):
        end_one()
        ask("ann")
    for _ in range(4 * slots):
        ask("ben")
    served.clear()
    before = {name: costs[name] for name in running}
    largest = (2_000 + 2 * 512) * 1000
    for _ in range(60):
        end_one()
        for user in ("ann", "ben", "ann", "ann"):  # who asks most must not get most
            ask(user)
        # What began before both were busy is not of the time they are compared in.
        had = dict(served)
        for name in running:
            had[name[:3]] = had.get(name[:3], 0) + court.charges[name]
        apart = abs(had.get("ann", 0) - had.get("ben", 0))
        head_start = sum((p + 1024) * 1000 for p, _ in before.values())
        hold(
            apart <= (cap + 1) * largest + head_start,
            "two equal people are served unequally (10, 11)",
        )


def a_big_one_starts_in_time(court: Court, seed: int) -> None:
    """(15) A long prompt or several sequences pass nobody by, and are passed for 20 s at most."""
    rng = random.Random(seed)
    is_prompt = rng.random() < 0.5
    slots = 4
    court.house([slots], budget=8_192)
    court.person("big", slots)
    for n in range(6):
        court.person(f"u{n}", slots)
    longest, count = 4 * SECOND, 0
    running: list[tuple[int, str]] = []

    def note(names: list[str]) -> None:
        running.extend((court.now_ms + rng.randint(1, 4) * SECOND, name) for name in names)

    def flood() -> None:
        nonlocal count
        while count < 12 or sum(k not in court.started_at for k in court.tickets) < 8:
            count += 1
            prompt = 3_000 if is_prompt else 0
            note(court.ask(f"s{count}", f"u{count % 6}", prompt=prompt, output=10))

    flood()
    note(court.wait(SECOND))
    asked_at = court.now_ms
    big = {"prompt": 20_000} if is_prompt else {"weight": 3}
    note(court.ask("BIG", "big", output=10, **big))
    for _ in range(120):
        for end in [r for r in running if r[0] <= court.now_ms]:
            running.remove(end)
            prompt = court.tickets[end[1]].prefill_tokens
            note(court.end(end[1], prompt, 10))
        flood()
        if "BIG" in court.started_at:
            break
        note(court.wait(SECOND))
    waited = court.started_at.get("BIG", 10**9) - asked_at
    hold(waited <= 20 * SECOND + 2 * longest + SECOND, f"a big ticket waited {waited} ms (15)")


def a_cancelled_reserver_delays_nobody(court: Court, seed: int) -> None:
    """(15) When a big ticket at its bound leaves, what it kept free is taken in the same step."""
    rng = random.Random(seed)
    slots = rng.choice([3, 4, 6])
    court.house([slots])
    court.person("big", slots)
    court.person("ann", slots)
    for n in range(slots):
        court.ask(f"a{n}", "ann")
    court.ask("BIG", "big", weight=slots)
    court.wait(21 * SECOND)
    for n in range(12):
        court.ask(f"b{n}", "ann")
    passed = 0
    for n in range(slots):
        passed += len(court.end(f"a{n}"))
    court.wait(21 * SECOND)
    # By now it reserves: whatever ends leaves its slot free.
    for name in [n for n in court.started_at if n.startswith("b")][:2]:
        hold(not court.end(name), "a small one passed a big one at its bound (15)")
    started = court.send(op.Cancel("BIG"))
    hold(len(started) >= 2, "a cancelled reserver still keeps its slots (15)")
