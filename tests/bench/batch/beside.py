"""Beside people who chat at 60 % of the slots: the engine's use, and how much longer they wait.

For each number of slots batch may hold while somebody chats, the same chats run first without
batch and then beside long batches of as many people as can hold those slots. The chats come at
random (Poisson, some people with a key each, log-normal answers) or, with --steady, from people
who never pause. Use is the time slots were held over the time there was; waits are what the
gateway says of each chat.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

from gateway.core.sharing import BATCH_USER_CAP
from tests.bench.batch.chat import Chatters
from tests.bench.batch.stage import MODEL, Batches, Stage, lengths, line, stage

SHARE, SIGMA, MEDIAN = 0.6, 0.6, 50
USE, WAIT = 0.9, 1.5
SETTLE_S = 8.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--seconds", type=float, default=60, help="of each measurement")
    parser.add_argument("--answer-s", type=float, default=1.0, help="median time of an answer")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--people", type=int, help="who chat; as many as slots")
    parser.add_argument("--steady", action="store_true", help="60 %% of the slots' people, always")
    parser.add_argument("--batch-slots", type=int, nargs="+", default=[2, 3, 4])


def run(given: argparse.Namespace) -> int:
    """Measure without and with batch."""
    token_s = given.answer_s / MEDIAN
    with stage(slots=given.slots, token_s=token_s) as here:
        people = math.ceil(SHARE * given.slots) if given.steady else given.people or given.slots
        chats = list(here.product.keys(**{f"p{n}": "interactive" for n in range(people)}).values())
        per_s = (
            0 if given.steady else SHARE * given.slots / (given.answer_s * math.exp(SIGMA**2 / 2))
        )
        alone = one(here, chats, per_s, given)
        print(
            f"without batch: use {alone[0]:.1%}, wait p95 {alone[1]:.2f} s, mean {alone[2]:.2f} s"
        )
        owners = [
            here.batches(here.product.key(f"owner{n}", "batch"))
            for n in range(math.ceil(max(given.batch_slots) / BATCH_USER_CAP))
        ]
        results = [beside(here, owners, slots, chats, per_s, given, alone[1])
                   for slots in given.batch_slots]  # fmt: skip
    return int(not any(results))


def one(
    here: Stage, chats: list[str], per_s: float, given: argparse.Namespace
) -> tuple[float, float, float]:
    """Return use of the engine, 95th percentile and mean of the waits."""
    with Chatters(here.product.url, chats, per_s, MEDIAN, SIGMA) as people:
        time.sleep(SETTLE_S)
        people.waits_s.clear()
        before = here.engine.stats()
        time.sleep(given.seconds)
        after, waits = here.engine.stats(), list(people.waits_s)
    people.check()
    use = (after["busy_s"] - before["busy_s"]) / (after["at_s"] - before["at_s"]) / given.slots
    return use, statistics.quantiles(waits, n=20)[-1], statistics.fmean(waits)


def beside(
    here: Stage, owners: list[Batches], slots: int, chats: list[str], per_s: float,
    given: argparse.Namespace, alone_p95: float,
) -> bool:  # fmt: skip
    """Print one comparison; return whether it is as asked."""
    here.product.manage(
        "shell", "--no-imports", "-c",
        "from quotas.models import Pool; from quotas import directory\n"
        f"Pool.objects.filter(name={MODEL!r}).update(batch_slots={slots})\n"
        "directory.publish(is_forced=True)",
    )  # fmt: skip
    owners = owners[: math.ceil(slots / BATCH_USER_CAP)]
    count = int(3 * given.seconds * given.slots / given.answer_s / len(owners))
    jobs = [
        (api, api.submit(line(n, tokens, "word " * 60)
                         for n, tokens in enumerate(lengths(count, MEDIAN, SIGMA, 9))))
        for api in owners
    ]  # fmt: skip
    use, p95, mean = one(here, chats, per_s, given)
    done = [api.done(batch_id) for api, batch_id in jobs]
    for api, batch_id in jobs:
        api.client.post(f"/v1/batches/{batch_id}/cancel")
    assert max(done) < count, "a batch ended too early"
    # Below a tenth of an answer a wait is not felt, and a ratio to it says nothing.
    ratio = p95 / max(alone_p95, 0.1 * given.answer_s)
    print(f"batch may hold {slots}: use {use:.1%} (goal {USE:.0%}), wait p95 {p95:.2f} s, "
          f"{ratio:.2f} × (goal {WAIT}), mean {mean:.2f} s, {sum(done)} lines")  # fmt: skip
    return use >= USE and ratio <= WAIT
