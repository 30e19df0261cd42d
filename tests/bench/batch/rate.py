"""One owner alone on an idle engine of 8 slots, against the same requests sent straight to it.

Straight means seven at a time, as many as batch may hold while a slot is kept for people who chat.
Lengths are log-normal with a fixed seed; both runs are of the same lines, one after the other, on
the same engine. The rate counts from submission to the last answer, ramp and result files
included; beside it stands the rate between the first tenth and the last.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import httpx
import orjson

from tests.bench.batch.stage import Engine, Stage, lengths, line, stage

GOAL = 0.95
SLOTS, IN_FLIGHT = 8, 7


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--lines", type=int, default=700)
    parser.add_argument("--line-s", type=float, default=0.5, help="median time of a line")


def run(given: argparse.Namespace) -> int:
    """Measure both."""
    tokens = lengths(given.lines, 50, 0.6, seed=4)
    lines = [line(n, count, "word " * 60) for n, count in enumerate(tokens)]
    with stage(slots=SLOTS, token_s=given.line_s / 50) as here:
        here.batches(here.product.key("warm", "batch")).submit(lines[:1])
        straight_s = asyncio.run(straight(here.engine, lines))
        return measure(here, lines, straight_s)


async def straight(engine: Engine, lines: list[bytes]) -> float:
    """Send all lines to the engine itself, seven at a time; return how long it took."""
    left = [orjson.loads(one)["body"] for one in reversed(lines)]

    async def worker(client: httpx.AsyncClient) -> None:
        while left:
            answer = await client.post("/v1/chat/completions", json=left.pop())
            answer.raise_for_status()

    began = time.monotonic()
    async with httpx.AsyncClient(base_url=engine.url, timeout=600) as client:
        await asyncio.gather(*(worker(client) for _ in range(IN_FLIGHT)))
    return time.monotonic() - began


def measure(here: Stage, lines: list[bytes], straight_s: float) -> int:
    """Run the batch and compare."""
    api = here.batches(here.product.key("alone", "batch"))
    file = api.upload(lines)
    before = here.engine.stats()
    began = time.monotonic()
    batch_id = str(api.create(file["id"])["id"])
    marks: list[tuple[float, int]] = []
    while (done := here.engine.stats()["served"] - before["served"]) < len(lines):
        marks.append((time.monotonic() - began, done))
        time.sleep(0.05)
    answered_s = time.monotonic() - began
    batch = api.wait(batch_id, 60)
    assert batch["request_counts"]["completed"] == len(lines), batch
    busy = (here.engine.stats()["busy_s"] - before["busy_s"]) / answered_s
    share = straight_s / answered_s
    print(f"straight, {IN_FLIGHT} at a time: {len(lines) / straight_s:.2f} lines/s")
    print(
        f"as a batch, with the ramp: {len(lines) / answered_s:.2f} lines/s, {share:.1%}; goal 95 %"
    )
    middle = _middle(marks, len(lines))
    print(f"  {busy:.2f} slots held on average; between 10 % and 90 %: {middle:.2f} lines/s")
    return int(share < GOAL)


def _middle(marks: list[tuple[float, int]], count: int) -> float:
    """Return the rate between the first tenth and the last."""
    inside = [(at, done) for at, done in marks if 0.1 * count <= done <= 0.9 * count]
    (first_s, first), (last_s, last) = inside[0], inside[-1]
    return (last - first) / max(0.001, last_s - first_s)
