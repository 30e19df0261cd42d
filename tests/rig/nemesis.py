"""A seeded run of faults under mixed load, and the history it leaves for the checkers."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product
from tests.rig.witness import Witness

KILLED_PARTS = ("gateway", "portal", "worker", "beat", "writer", "valkey", "postgres")
GAP_S = (1.0, 4.0)


@dataclass
class History:
    """What the clients saw, and what was done to the product meanwhile."""

    calls: list[Call] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(f"{at:.2f} {name}" for at, name in self.faults)


class Nemesis:
    """Breaks one thing at a time, at moments and in an order the seed decides."""

    def __init__(self, product: Product, engine: Witness, seed: int) -> None:
        self._product = product
        self._engine = engine
        self._dice = random.Random(seed)
        self.history = History()

    def _faults(self) -> Mapping[str, Callable[[], object]]:
        found: dict[str, Callable[[], object]] = {
            f"kill {part}": lambda part=part: self._kill(part) for part in KILLED_PARTS
        }
        return found | {
            "flush redis": self._flush,
            "stop engine": lambda: self._engine.kill(signal.SIGSTOP),
            "continue engine": lambda: self._engine.kill(signal.SIGCONT),
            "kill engine": self._kill_engine,
            "engine is busy": lambda: self._engine.tell(fail_status=503, fail_share=0.3),
            "engine breaks streams": lambda: self._engine.tell(close_after=3),
            "engine behaves": self._engine.reset,
        }

    def _kill(self, part: str) -> None:
        if self._product.pid(part):
            self._product.kill(part)

    def _kill_engine(self) -> None:
        self._engine.kill()
        self._engine.start()

    def _flush(self) -> None:
        with self._product.redis() as link:
            link.flushall()

    async def run(self, count: int) -> None:
        """Do so many faults, then heal what does not heal by itself."""
        faults = self._faults()
        healing = {"stop engine": "continue engine", "engine is busy": "engine behaves",
                   "engine breaks streams": "engine behaves"}  # fmt: skip
        names = [name for name in faults if name not in healing.values()]
        for _ in range(count):
            await asyncio.sleep(self._dice.uniform(*GAP_S))
            name = self._dice.choice(names)
            self._do(name, faults[name])
            if name in healing:
                await asyncio.sleep(self._dice.uniform(*GAP_S))
                self._do(healing[name], faults[healing[name]])

    def _do(self, name: str, fault: Callable[[], object]) -> None:
        self.history.faults.append((time.monotonic(), name))
        try:
            # In the main thread: a program dies with the thread that started it.
            fault()
        except (OSError, AssertionError) as error:
            # Another fault may have taken away what this one was to break.
            self.history.faults.append((time.monotonic(), f"{name} failed: {error}"))

    async def use(self, key: str, owner: str, ended: asyncio.Event) -> None:
        """Chat with one key until the end; one in eight requests is left early."""
        dice = random.Random(owner)
        number = 0
        while not ended.is_set():
            async with Caller(self._product.url, timeout_s=90) as client:
                while not ended.is_set():
                    number += 1
                    leave = dice.randrange(1, 6) if dice.random() < 1 / 8 else -1
                    body = chat("witness", f"{owner}/{number}", stream=dice.random() < 0.8,
                                stream_options={"include_usage": True})  # fmt: skip
                    if not body["stream"]:
                        del body["stream_options"]
                    call = await client.ask(key, body, leave_after=leave)
                    self.history.calls.append(call)
                    await asyncio.sleep(0.05 if call.whole else 0.3)
                    if call.broke:
                        break  # begin again with new connections
