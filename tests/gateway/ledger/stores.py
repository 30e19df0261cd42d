"""The two ledgers behind one door, without sockets of the product: what the tests compare."""

from __future__ import annotations

import redis

from gateway.ledger import lines, recount, snapshot
from gateway.ledger import operations as op
from gateway.ledger.memory import MemoryStore
from gateway.ledger.redis import PREFIX
from gateway.ledger.script import SCRIPT

START_MS = 1_700_000_000_000


def plain(value: object) -> object:
    """Return one of the ledger's words as something to compare and to show."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    names = getattr(type(value), "__slots__", ())
    return (type(value).__name__, *(plain(getattr(value, n)) for n in names)) if names else value


class LuaStore:
    """The script under a clock that only the test switch moves."""

    def __init__(self, url: str, script: bytes = SCRIPT, start_ms: int = START_MS) -> None:
        self.client = redis.Redis.from_url(url)
        self._step = self.client.register_script(script)
        self.start_ms = start_ms
        self._looks = 0

    def call(self, call: op.Call, flags: str = "1tf", run: str = "run") -> op.Reply:
        """Send one call and read its reply."""
        arguments: list[str | bytes] = [
            call.gateway, str(call.previous), str(call.sequence),
            flags + ("a" if call.adopts else ""), run, str(self.start_ms),
        ]  # fmt: skip
        for operation in call.operations:
            for line in lines.encode(operation):
                arguments += line
        return lines.decode(self._step(keys=[PREFIX], args=arguments))

    def mismatches(self) -> list[str]:
        """Recount everything the script counts, its ready flows included."""
        # A process of its own, so that nobody's inbox is emptied by looking.
        self._looks += 1
        auditor = Driver(self, f"auditor{self._looks}")
        rows = [r for r in auditor.send(op.Look()) if isinstance(r, op.Row)]
        state = snapshot.state_of(rows)
        return [*recount.mismatches(state), *snapshot.wrong_heads(state, rows)]


class MemoryTwin(MemoryStore):
    """The memory ledger started at the same instant."""

    def __init__(self) -> None:
        super().__init__(test_switch=True, start_ms=START_MS)

    def mismatches(self) -> list[str]:
        return recount.mismatches(self.state)


class Driver:
    """One gateway process that never loses a reply."""

    def __init__(self, store: LuaStore | MemoryStore, name: str = "g1") -> None:
        self.store, self.name, self.sequence = store, name, 0

    def send(self, *operations: op.Operation, adopts: bool = False) -> tuple[op.Result, ...]:
        """Make one call; adopt with nothing when the ledger asks for it."""
        call = op.Call(self.name, self.sequence, self.sequence + 1, operations, adopts)
        reply = self.store.call(call)
        self.sequence += 1
        if reply.must_adopt:
            return (*self.send(adopts=True), *self.send(*operations))
        return reply.results
