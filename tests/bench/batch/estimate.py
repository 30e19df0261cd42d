"""How well the estimate before submitting meets the real end, in mixed runs.

Each run has its own seed: number of lines, prompts, whether lines state a longest answer, and how
many people chat meanwhile (none, 30 or 60 % of the slots). The engine draws the lengths of answers
log-normally; neither a line nor the estimate knows them. Told first, measured after.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import time
from collections.abc import Iterator

from tests.bench.batch.chat import Chatters
from tests.bench.batch.stage import Batches, Stage, line, stage

WITHIN, OF_TEN = 0.25, 0.8
SLOTS, PEOPLE, MEDIAN, SIGMA = 8, 12, 50, 0.7
SETTLE_S = 6.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--answer-s", type=float, default=0.5, help="median time of an answer")


def run(given: argparse.Namespace) -> int:
    """Estimate and measure one run after the other on one product."""
    times = {"token_s": given.answer_s / MEDIAN, "prompt_token_s": 0.0002}
    with stage(slots=SLOTS, median=MEDIAN, sigma=SIGMA, **times) as here:
        chats = list(here.product.keys(**{f"c{n}": "interactive" for n in range(PEOPLE)}).values())
        api = here.batches(here.product.key("planner", "batch"))
        api.wait(api.submit(line(n, 400, f"warm {n}") for n in range(60)), 120)
        time.sleep(12)  # until the warm-up is in the books
        errors = [one(here, api, chats, given.seed + n, given.answer_s) for n in range(given.runs)]
    good = sum(abs(error) <= WITHIN for error in errors)
    print(f"{good} of {given.runs} within {WITHIN:.0%}; goal {OF_TEN:.0%}")
    return int(good < OF_TEN * given.runs)


def one(here: Stage, api: Batches, chats: list[str], seed: int, answer_s: float) -> float:
    """Return by how much of the real time the estimate was wrong."""
    dice = random.Random(seed)
    share = dice.choice((0.0, 0.3, 0.6))
    count, words = dice.randrange(60, 200), dice.choice((20, 100, 400))
    asked = dice.choice((None, 400, 60))
    file = api.upload(line(n, asked, f"{seed} {n} " + "word " * words) for n in range(count))
    with chatting(here, chats, share, answer_s, seed):
        body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions",
                "completion_window": "24h"}  # fmt: skip
        told = api.client.post("/v1/batches/estimate", json=body).json()
        began = time.time()
        batch = api.wait(str(api.create(file["id"])["id"]), 600)
        real = batch["completed_at"] - began
    if told["estimated_completion_at"] is None:
        print(f"seed {seed}: no estimate")
        return math.inf
    estimated = told["estimated_completion_at"] - began
    error = (estimated - real) / real
    print(f"seed {seed}: {count} lines, {words} words, at most {asked}, chat {share:.0%}: "
          f"told {estimated:.0f} s, took {real:.0f} s: {error:+.0%}")  # fmt: skip
    return error


@contextlib.contextmanager
def chatting(
    here: Stage, chats: list[str], share: float, answer_s: float, seed: int
) -> Iterator[None]:
    """Keep people chatting for the length of a `with` block, from a while before it."""
    if not share:
        yield
        return
    per_s = share * SLOTS / (answer_s * math.exp(SIGMA**2 / 2))
    with Chatters(here.product.url, chats, per_s, 400, 0.0, seed) as people:
        time.sleep(SETTLE_S)
        yield
    people.check()
