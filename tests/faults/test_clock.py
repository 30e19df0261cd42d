"""The host's clock is set by an hour or a day: nothing is reaped, aged or timed out."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.ledger.redis import KEYS
from tests.rig.chat import Call, Caller, chat
from tests.rig.crowd import capped
from tests.rig.entries import entries
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

# Debian's faketime answers a process's questions for the time of day; the monotonic clock, which
# no administrator can set, stays as it is.
LIBRARIES = list(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
HOUR_S, DAY_S = 3600, 86_400
STEPS_S = [HOUR_S, 0, -HOUR_S, 0, DAY_S, 0]

pytestmark = [
    pytest.mark.fault,
    pytest.mark.long,
    pytest.mark.skipif(not LIBRARIES, reason="faketime is not installed"),
]


class Clock:
    """The time of day as every program of one product sees it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "step"
        folder.chmod(0o755)  # PostgreSQL runs as another user
        self.step(0)

    def step(self, seconds: int) -> None:
        """Set the clock so many seconds apart from the true time."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.chmod(0o644)
        fresh.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """Return what makes a program see it."""
        return {
            "LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_RESET": "1",
        }  # fmt: skip


@pytest.fixture
def clock() -> Iterator[Clock]:
    """Return the clock of a product."""
    with tempfile.TemporaryDirectory(prefix="fairway-clock-") as folder:
        yield Clock(Path(folder))


def ledger_clock(product: Product) -> tuple[int, int]:
    """Return ledger time and the server's time of day at its last call, in milliseconds."""
    with product.redis() as link:
        now, seen = link.hmget(f"{KEYS}meta", "now", "clock")
    assert now
    assert seen
    return int(now), int(seen)


@pytest.mark.timeout(300)
async def test_a_stepped_clock_moves_nothing(
    fresh: Callable[..., Product], running_witness: Witness, clock: Clock
) -> None:
    """
    With a stream, a chat and a batch request waiting, the clock of the whole running product is
    set an hour forward, back, an hour back, and by a day: everything goes on as if nothing had
    happened, and ledger time moves by what passed and at most a second a step.
    """
    witness = running_witness
    product = fresh(witness.url, GATEWAY_PROCESSES="2", **clock.environment)
    product.settings = {}  # commands of ours need not be slowed down by it
    keys = await asyncio.to_thread(
        capped, product, {"early": ("interactive", 1), "late": ("batch", 1)}
    )
    witness.tell(decode_tps=2, tokens=40)

    async def ask(owner: str, number: int) -> Call:
        async with Caller(product.url, timeout_s=100) as client:
            return await client.ask(keys[owner], chat("witness", f"{owner}/{number}"))

    calls = []
    for number in range(2):
        calls += [asyncio.create_task(ask(owner, number)) for owner in keys]
        await asyncio.to_thread(
            wait_until,
            lambda number=number: len(entries(product)) == 2 * (number + 1),
            10, "they run or wait",
        )  # fmt: skip
    before = {entry.ticket: entry.held for entry in entries(product)}
    assert sorted(before.values()) == [False, False, True, True]
    began_ms, began_s = ledger_clock(product)[0], time.monotonic()
    for number, step_s in enumerate(STEPS_S):
        clock.step(step_s)
        aim_ms = (time.time() + step_s) * 1000
        await asyncio.to_thread(
            wait_until,
            lambda aim_ms=aim_ms: abs(ledger_clock(product)[1] - aim_ms) < 60_000,
            10, f"step {number} is seen",
        )  # fmt: skip
        await asyncio.sleep(1)
        # The second that ledger time moves at once may make a process silent for a moment, until
        # it calls again: what waits there then leaves the queue and returns to its place.
        await asyncio.to_thread(
            wait_until,
            lambda: {entry.ticket: entry.held for entry in entries(product)} == before,
            3, f"all is as before after a step to {step_s:+d} s",
        )  # fmt: skip
    passed_ms = (time.monotonic() - began_s) * 1000
    moved_ms = ledger_clock(product)[0] - began_ms
    print(f"{passed_ms:.0f} ms passed, ledger time moved by {moved_ms} ms")
    assert abs(moved_ms - passed_ms) < 1000 * (len(STEPS_S) + 1)
    witness.tell(tokens=2, decode_tps=0)
    ends = await asyncio.gather(*calls)
    assert [(call.status, call.code) for call in ends if not call.whole] == []
