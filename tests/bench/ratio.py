"""The cheap form of `wire`: ours with the memory ledger beside nginx, in a few seconds.

`python -m tests.bench.ratio REDIS_URL` prints nginx's and our CPU per plain request and per event
and the ratios; the best of several short interleaved rounds, since other work only ever adds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import uvloop

from tests.bench import peers, rig
from tests.bench.peers import LOAD_CORE, Ours, Peer
from tests.bench.wire import take_records
from tests.rig.network import free_port

ROUNDS = 4
SECONDS = 0.6


async def cost_us(peer: Peer, *, stream: bool) -> float:
    """Return the CPU of one request, or of one event, in one short round."""
    raw = rig.request(peer.port, peer.secret, stream=stream)
    async with rig.under_load(peer.port, raw, 64) as counts:
        await asyncio.sleep(0.2)  # warm
        before = peer.cpu_s()
        counts.take()
        await asyncio.sleep(SECONDS)
        used, seen = peer.cpu_s() - before, counts.take()
    return used / max(seen.events if stream else seen.answers, 1) * 1e6


async def ratios(url: str) -> tuple[float, float]:
    """Return our CPU in nginx's: per request and per event."""
    loop = asyncio.get_running_loop()
    engine = await loop.create_server(rig.Engine, "127.0.0.1", 0)
    port = engine.sockets[0].getsockname()[1]
    beside = [asyncio.create_task(rig.decode()), asyncio.create_task(take_records(url))]
    found: list[float] = []
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        starts = (peers.nginx, Ours("memory", url))
        both = [
            stack.enter_context(
                peers.running(await asyncio.to_thread(start, folder, free_port(), port))
            )
            for start, folder in zip(starts, folders, strict=True)
        ]
        for stream in (False, True):
            best = [float("inf"), float("inf")]
            for _ in range(ROUNDS):
                for number, peer in enumerate(both):
                    best[number] = min(best[number], await cost_us(peer, stream=stream))
            what = "event" if stream else "request"
            print(f"us per {what}: nginx {best[0]:.1f}, ours {best[1]:.1f}", flush=True)
            found.append(best[1] / best[0])
    for task in beside:
        task.cancel()
    return found[0], found[1]


if __name__ == "__main__":
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {LOAD_CORE})
    per_request, per_event = uvloop.run(ratios(sys.argv[1]))
    print(f"{per_request:.2f} x nginx per request, {per_event:.2f} x per event")
