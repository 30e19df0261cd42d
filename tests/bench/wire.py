"""What forwarding costs, side by side: `python -m tests.bench.wire REDIS_URL [--long]`.

One proxy at a time has one core, engine and load have another. Rounds are interleaved and medians
shown. The figure to trust is the proxy's CPU time for a piece of work: compare only figures of one
run. Writes docs/benchmarks.md and a picture beside it. `--long` sends a million plain requests
through ours and shows its memory on the way; BENCH_PEERS names proxies, where not all are wanted.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import platform
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import median

import redis.asyncio as redis
import uvloop

from gateway import compiled
from quotas.snapshots.usage import EPOCH, STREAM, WRITTEN
from tests.bench import others, peers, rig
from tests.bench.peers import LOAD_CORE, Missing, Ours, Peer
from tests.rig.network import free_port

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
MILLION = 1_000_000
DOCUMENT = peers.ROOT / "docs" / "benchmarks.md"
Start = Callable[[Path, int, int], Peer]
Row = dict[str, float]

# So far off that one round says it.
ONCE = ("portkey", "litellm")

# name -> (streams?, connections, characters of the prompt)
LOADS = {
    "plain": (False, 64, 512),
    "alone": (False, 1, 512),
    "long": (False, 16, 100_000),
    "few": (True, 32, 512),
    "many": (True, 256, 512),
}


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def _figures(name: str, used_s: float, seen: rig.Counts, *, streams: bool) -> Row:
    """Return what a load has shown: CPU for each piece of work, and what clients see."""
    if streams:
        return {
            f"{name} us/event": used_s / seen.events * 1e6 if seen.events else nan,
            f"{name} events/s": seen.events / SECONDS,
            f"{name} ttft ms": _quantile(seen.first, 0.5) * 1e3,
            f"{name} delay p99 ms": _quantile(seen.delays_us, 0.99) / 1e3,
        }
    return {
        f"{name} us/request": used_s / max(seen.answers, 1) * 1e6,
        f"{name} requests/s": seen.answers / SECONDS,
        f"{name} p99 ms": _quantile(seen.latencies, 0.99) * 1e3,
    }


async def measure(peer: Peer, port: int, secret: str) -> Row:
    """Put every load on one proxy and return its figures."""
    row: Row = {}
    for name, (streams, connections, characters) in LOADS.items():
        raw = rig.request(port, secret, stream=streams, characters=characters, headers=peer.headers)
        # Streams begin evenly over the time of an answer, as people's do, and stay so apart.
        apart_s = rig.TOKENS / rig.TOKENS_PER_S / connections if streams else 0.0
        async with rig.under_load(port, raw, connections, apart_s=apart_s) as counts:
            await asyncio.sleep(0.5)  # warm
            before = peer.cpu_s()
            counts.take()
            await asyncio.sleep(SECONDS)
            used, seen = peer.cpu_s() - before, counts.take()
        if seen.errors:
            print(f"  {peer.name}, {name}: {seen.errors} errors", flush=True)
        row |= _figures(name, used, seen, streams=streams)
        await asyncio.sleep(0.2)
    row["memory MiB"] = peer.memory_mib()
    return row


async def take_records(url: str) -> None:
    """Do the usage writer's part: say which records the books have, so that gateways let go."""
    store = redis.Redis.from_url(url)
    while True:
        await asyncio.sleep(0.5)
        epoch, last = await store.get(EPOCH), await store.xrevrange(STREAM, count=1)
        if epoch and last:
            run_id = (await store.info("server"))["run_id"]
            position = [epoch.decode(), run_id, last[0][0].decode()]
            await store.set(WRITTEN, json.dumps(position))
            await store.xtrim(STREAM, maxlen=10)


async def bench(url: str, *, long: bool) -> None:
    """Run all rounds and write the page."""
    loop = asyncio.get_running_loop()
    engine = await loop.create_server(rig.Engine, "127.0.0.1", 0)
    port = engine.sockets[0].getsockname()[1]
    beside = [asyncio.create_task(rig.decode()), asyncio.create_task(take_records(url))]
    starts: dict[str, Start] = {
        "direct": peers.direct,
        "nginx": peers.nginx,
        "vllm-router": others.vllm_router,
        "sglang-router": others.sglang_router,
        "fairway, memory ledger": Ours("memory", url),
        "fairway, redis ledger": Ours("redis", url),
        "fairway, not compiled": Ours("memory", url, is_compiled=False),
        "portkey": others.portkey,
        "litellm": others.litellm,
    }
    if not compiled.folder().is_dir():
        del starts["fairway, not compiled"]
    wanted = os.environ.get("BENCH_PEERS", "")
    rows: dict[str, list[Row]] = defaultdict(list)
    missing: dict[str, str] = {}
    for number in range(ROUNDS):
        for name, start in starts.items():
            if name in missing or (wanted and name.split(",")[0] not in wanted.split(",")):
                continue
            if number and name in ONCE:
                continue
            try:
                row = await one_round(start, port)
            except Missing as why:
                missing[name] = str(why)
                continue
            rows[name].append(row)
            print(f"  round {number + 1}: {name}", flush=True)
    notes = [await million(starts["fairway, memory ledger"], port)] if long else []
    for task in beside:
        task.cancel()
    medians = {
        name: {key: median(one[key] for one in found) for key in found[0]}
        for name, found in rows.items()
    }
    write(medians, missing, notes)


async def one_round(start: Start, engine: int) -> Row:
    """Start one proxy, measure it and stop it."""
    with tempfile.TemporaryDirectory(prefix="fairway-bench-") as folder:
        peer = await asyncio.to_thread(start, Path(folder), free_port(), engine)
        with peers.running(peer):
            await asyncio.sleep(1)
            return await measure(peer, peer.port, peer.secret)


async def million(start: Start, engine: int) -> str:
    """Send a million plain requests, no two alike, and say how the memory was on the way."""
    with tempfile.TemporaryDirectory(prefix="fairway-bench-") as folder:
        peer = await asyncio.to_thread(start, Path(folder), free_port(), engine)
        with peers.running(peer):
            request = rig.of_strangers(rig.request(peer.port, peer.secret, stream=False))
            sent, found = 0, []
            async with rig.under_load(peer.port, request, 64) as counts:
                while sent < MILLION:
                    await asyncio.sleep(5)
                    sent += counts.take().answers
                    found.append(peer.memory_mib())
    thirds = [median(found[i * len(found) // 3 : (i + 1) * len(found) // 3]) for i in range(3)]
    return (
        "A million plain requests through ours, each of another conversation: "
        f"{thirds[0]:.1f} MiB in the first third, {thirds[1]:.1f} in the second, {thirds[2]:.1f} "
        f"in the last; most {max(found):.1f}."
    )


COLUMNS = (
    ("plain us/request", "CPU µs / request, 64 at once"),
    ("plain requests/s", "requests/s, 64 at once"),
    ("alone p99 ms", "p99 ms, one at a time"),
    ("long us/request", "CPU µs / request of 100 kB"),
    ("few ttft ms", "first event ms, 32 streams"),
    ("many us/event", "CPU µs / event, 256 streams"),
    ("many events/s", "events/s, 256 streams"),
    ("many delay p99 ms", "event delay p99 ms, 256 streams"),
    ("memory MiB", "memory MiB"),
)


def write(medians: dict[str, Row], missing: dict[str, str], notes: list[str]) -> None:
    """Write the table and the picture."""
    lines = [
        "# What forwarding costs",
        "",
        f"Made by `make bench` on {dt.datetime.now(dt.UTC):%Y-%m-%d} "
        f"({os.cpu_count()} cores shared with other work, load {os.getloadavg()[1]:.1f}; medians "
        f"of {ROUNDS} interleaved rounds of {SECONDS:g} s, of {' and '.join(ONCE)} one). One "
        f"process on one core each; streams of {rig.TOKENS} tokens at {rig.TOKENS_PER_S} a second, "
        "begun apart. Ours checks the key, holds the caps, counts requests per minute "
        "and tokens per day, orders the queue, keeps sessions together, writes a usage record and "
        f"counts metrics; the others do none of this. Python {platform.python_version()} of "
        f"{_distribution()}"
        f"{BUILT if compiled.folder().is_dir() else NOT_BUILT}. Compare figures of this table only "
        "with each other.",
        "",
        "| proxy | " + " | ".join(text for _, text in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, row in medians.items():
        lines.append(f"| {name} | " + " | ".join(_cell(row[key]) for key, _ in COLUMNS) + " |")
    lines += ["", *(f"Missing here: {name} ({why})." for name, why in missing.items()), ""]
    lines += [*ratios(medians), *notes, ""]
    DOCUMENT.write_text("\n".join(lines) + "\n![CPU time](benchmarks.png)\n")
    picture(medians)
    print("\n".join(lines))


def _per_event(ratio: float) -> str:
    return "which passed no event in time" if isnan(ratio) else f"{ratio:.3g} × per event"


def _cell(value: float) -> str:
    """Write a figure; where nothing came in time there is none."""
    return "none came" if isnan(value) else f"{value:.1f}"


BUILT = "; ours with its hot modules compiled (`make compiled`), where it does not say otherwise"
NOT_BUILT = "; nothing of ours was compiled"


def _distribution() -> str:
    """Say whose build of Python this is: it decides about a third of our figures."""
    is_debian = sys.base_prefix == "/usr" and Path("/etc/debian_version").exists()
    return "Debian" if is_debian else "another build than Debian's"


def ratios(medians: dict[str, Row]) -> list[str]:
    """Return the ratios that the goals are written in."""
    found = []
    for name, row in medians.items():
        if not name.startswith("fairway"):
            continue
        for other, theirs in medians.items():
            if other != "direct" and not other.startswith("fairway"):
                request = row["plain us/request"] / theirs["plain us/request"]
                event = row["many us/event"] / theirs["many us/event"]
                delay = row["many delay p99 ms"] / theirs["many delay p99 ms"]
                found.append(
                    f"* {name}: {request:.3g} × {other} per request, {_per_event(event)}, "
                    f"{delay:.3g} × its p99 of event delay."
                )
        if "direct" in medians:
            bare = medians["direct"]
            added_ms = row["few ttft ms"] - bare["few ttft ms"]
            share = row["many events/s"] / bare["many events/s"]
            found.append(f"* {name}: first event {added_ms:.1f} ms later than without a proxy, "
                         f"{share:.1%} of its events.")  # fmt: skip
    return [*found, ""]


def picture(medians: dict[str, Row]) -> None:
    """Draw CPU per request and per event."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in medians if name not in ("direct", "litellm", "portkey")]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3), layout="constrained")
    for axis, key, title in (
        (axes[0], "plain us/request", "CPU µs per plain request, 64 at once"),
        (axes[1], "many us/event", "CPU µs per streamed event, 256 streams"),
    ):
        axis.barh(names, [medians[name][key] for name in names], color="#3a6ea5")
        axis.set_title(title, fontsize=10)
        axis.invert_yaxis()
    figure.savefig(DOCUMENT.with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {LOAD_CORE})
    uvloop.run(bench(sys.argv[1], long="--long" in sys.argv))
