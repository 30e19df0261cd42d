"""No line is lost, none is there twice, whatever dies: the whole product, killed part by part."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import redis

from portal import stores
from tests.batches.patient import ENDED, Batches, marked
from tests.rig.engine_script import Script
from tests.rig.product import Product, descendants
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Yield an engine on which a line takes a moment, so that kills find lines in flight."""
    folder: Path = tmp_path_factory.mktemp("engine")
    witness = Witness(folder, Script(slots=4, model="tiny", tokens=6, first_delay_s=0.4)).start()
    yield witness
    witness.stop()


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory, engine: Witness) -> Iterator[Product]:
    """Yield a product of this module's own: its parts die.

    Its broker delivers a message again after ten seconds, as the usual one does after ten minutes:
    every run here is also one in which wake-ups come twice.
    """
    installed = Product(
        tmp_path_factory.mktemp("product"),
        engine.url,
        {"ENGINE_SLOTS": "4", "BROKER_VISIBILITY_S": "10"},
    ).start()
    yield installed
    installed.stop()


def kill_worker_children(product: Product, most: int = 1) -> None:
    """Kill processes of the worker's pool; their parent lives on."""
    parent = product.pid("worker")
    children = [p.pid for p in descendants(parent)] if parent else []
    for pid in random.sample(children, min(most, len(children))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


SHORT = ("worker", "child", "valkey", "flush", "gateway", "postgres")
LONG = ("worker", "child") * 5 + ("valkey",) * 3 + ("postgres", "gateway") * 2 + ("flush",)
CASES = [
    pytest.param(SHORT, 60, id="short"),
    pytest.param(LONG, 500, id="long", marks=[pytest.mark.long, pytest.mark.timeout(900)]),
]


def await_parts(product: Product) -> None:
    """Return once nothing is dead."""
    wait_until(
        lambda: all(product.pid(part) for part in ("worker", "valkey", "postgres", "gateway")),
        60, "the parts are back",
    )  # fmt: skip


def rows_answer(product: Product) -> bool:
    """Tell whether PostgreSQL answers; one that was killed is there before it does."""
    with suppress(psycopg.OperationalError):
        return product.sql("SELECT 1") == [(1,)]
    return False


def let_parts_die(
    product: Product, api: Batches, batch_id: str, faults: tuple[str, ...], pause_s: float
) -> int:
    """Kill one part after another while the batch runs; return how many died."""
    for number, fault in enumerate(faults):
        time.sleep(pause_s)
        if api.batch(batch_id)["status"] in ENDED:
            return number
        await_parts(product)
        if fault == "child":
            kill_worker_children(product)
        elif fault == "flush":
            with product.redis() as link:
                link.flushall()
        else:
            product.kill(fault)
    return len(faults)


def state_of(product: Product, batch_id: str) -> str:
    """Return a job's state as its row has it."""
    return str(product.sql("SELECT state FROM batch_job WHERE public_id = %s", batch_id)[0][0])


def kill_the_writer(product: Product, batch_id: str) -> bool:
    """Kill the worker, parent and children, in the moment it writes the results; True: it hit."""
    await_parts(product)
    wait_until(lambda: rows_answer(product), 60, "PostgreSQL has recovered")
    parent = product.pid("worker")
    pids = [parent, *(process.pid for process in descendants(parent))]
    query = "SELECT state FROM batch_job WHERE public_id = %s"
    give_up = time.monotonic() + 120
    with psycopg.connect(stores.postgres_url(product.data_dir), autocommit=True) as link:
        while time.monotonic() < give_up:
            (state,) = link.execute(query, [batch_id]).fetchone() or ("",)
            if state == "finalizing":
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return True
            if state not in {"queued", "in_progress"}:
                return False
            time.sleep(0.001)
    return False


@pytest.mark.parametrize(("faults", "lines"), CASES)
def test_a_batch_survives_the_death_of_every_part(
    product: Product, engine: Witness, faults: tuple[str, ...], lines: int
) -> None:
    """
    With worker, its children, Valkey, PostgreSQL and gateway killed and the broker emptied while
    it runs, each custom_id is in the results exactly once, and the engine saw a line at most once
    more than faults hit it.
    """
    owner = f"killed{lines}"
    dice = random.Random(20261129)
    shuffled = tuple(dice.sample(faults, len(faults)))
    with Batches(product, product.key(owner, "batch")) as api:
        batch_id = api.submit(marked(owner, lines))
        states, is_long = {"in_progress"}, faults is LONG
        if is_long:
            states.add(state_of(product, batch_id))
            product.kill("worker")
        hits = is_long + let_parts_die(product, api, batch_id, shuffled, pause_s=0.8)
        if is_long and kill_the_writer(product, batch_id):
            states.add("finalizing")
        print(f"killed in the states {sorted(states)}")
        batch = api.ended(batch_id, 240)
        rows = api.rows(batch)

    assert Counter(row["custom_id"] for row in rows) == Counter(f"l{n}" for n in range(lines))
    assert batch["status"] == "completed", batch
    assert batch["request_counts"] == {"total": lines, "completed": lines, "failed": 0}, rows
    assert {row["response"]["status_code"] for row in rows} == {200}
    served = Counter(record.mark for record in engine.records(owner))
    assert hits >= 4
    assert max(served.values()) <= 1 + hits
    assert sum(served.values()) <= lines + hits * 8


@pytest.fixture
def apart(tmp_path: Path, engine: Witness) -> Iterator[Product]:
    """Yield a product whose files lie in a storage without paths, as on another machine."""
    settings = {
        "ENGINE_SLOTS": "4",
        "FILES_STORAGE": "tests.rig.remote.RemoteStorage",
        "FILES_STORAGE_OPTIONS": json.dumps({"folder": str(tmp_path / "remote")}),
    }
    installed = Product(tmp_path / "apart", engine.url, settings)
    installed.folder.mkdir()
    yield installed.start()
    installed.stop()


@pytest.mark.long
def test_a_batch_ends_after_its_worker_died_at_27_of_64(apart: Product, engine: Witness) -> None:
    """
    With the files where no part has a disk, no line is lost when the worker dies and another goes
    on, and none runs twice but for those that were out.
    """
    with Batches(apart, apart.key("lost", "batch")) as api:
        batch_id = api.submit(marked("lost", 64))
        wait_until(
            lambda: api.batch(batch_id)["request_counts"]["completed"] >= 27, 60, "27 have ended",
            every_s=0.1,
        )  # fmt: skip
        apart.kill("worker")
        batch = api.ended(batch_id, 90)
        rows = api.rows(batch)

    assert batch["request_counts"] == {"total": 64, "completed": 64, "failed": 0}
    assert Counter(row["custom_id"] for row in rows) == Counter(f"l{n}" for n in range(64))
    assert len(engine.records("lost")) <= 64 + 8
    assert not list(apart.data_dir.glob("files/**/*.jsonl"))


def tries(engine: Witness, mark: str) -> int:
    """Return how often the engine was asked for one line."""
    return sum(record.mark == mark for record in engine.records())


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_line_that_kills_its_worker_each_time_fails_by_itself(
    product: Product, engine: Witness
) -> None:
    """
    A line during which the worker's processes are killed whenever it is tried is given up after
    three tries; its batch completes without it, and another person's is not held for a minute.
    """
    engine.tell(rules={"greedy/l5": {"first_delay_s": 3.0}})
    keys = product.keys(greedy="batch", calm="batch")
    with Batches(product, keys["greedy"]) as api, Batches(product, keys["calm"]) as other:
        batch_id = api.submit(marked("greedy", 12))
        wait_until(lambda: tries(engine, "greedy/l5"), 60, "the line is tried")
        calm_id, began = other.submit(marked("calm", 12)), time.monotonic()
        killed, calm_s = 0, 0.0
        while (batch := api.batch(batch_id))["status"] not in ENDED:
            assert time.monotonic() - began < 300
            if tries(engine, "greedy/l5") > killed:
                killed += 1
                kill_worker_children(product, most=99)
            if not calm_s and other.batch(calm_id)["status"] in ENDED:
                calm_s = time.monotonic() - began
            time.sleep(0.1)
        rows = {row["custom_id"]: row for row in api.rows(batch)}
    engine.reset()

    assert killed == 3
    assert batch["request_counts"] == {"total": 12, "completed": 11, "failed": 1}
    assert rows["l5"]["error"]["code"] == "attempts_exhausted"
    assert 0 < calm_s < 60


@pytest.mark.long
def test_a_batch_whose_runner_is_dead_can_be_cancelled(product: Product) -> None:
    """The cancel does not wait for anybody: cancelled, with each line in one file."""
    with Batches(product, product.key("dead", "batch")) as api:
        batch_id = api.submit(marked("dead", 40))
        wait_until(lambda: api.batch(batch_id)["request_counts"]["completed"] >= 2, 60, "it runs")
        product.kill("worker")
        api.patiently("POST", f"/v1/batches/{batch_id}/cancel")
        batch = api.ended(batch_id, 60)
        rows = api.rows(batch)

    assert batch["status"] == "cancelled"
    assert Counter(row["custom_id"] for row in rows) == Counter(f"l{n}" for n in range(40))


LOST = {
    "everything": lambda link: link.flushall(),
    "bindings": lambda link: forget(link, "_kombu.binding.*"),
    "unacknowledged": lambda link: forget(link, "unacked*"),
    "a-part": lambda link: (forget(link, "_kombu.binding.*"), forget(link, "unacked*")),
}


def forget(link: redis.Redis, pattern: str) -> None:
    """Delete the keys of a pattern."""
    for name in link.scan_iter(pattern):
        link.delete(name)


@pytest.mark.parametrize(
    ("when", "what"),
    [
        ("running", "a-part"),
        *(
            pytest.param(when, what, marks=pytest.mark.long)
            for when in ("idle", "running")
            for what in ("everything", "bindings", "unacknowledged")
        ),
    ],
)
def test_what_the_broker_forgets_delays_no_batch_for_ever(
    product: Product, what: str, when: str
) -> None:
    """Wake-ups may be lost with or without their bindings: the rows are found by the sweeper."""
    with Batches(product, product.key(f"{what}-{when}", "batch")) as api:
        if when == "running":
            running = api.submit(marked(f"{what}-1", 6))
            wait_until(lambda: api.batch(running)["lines_running"], 60, "a task runs")
        with product.redis() as link:
            LOST[what](link)
        batch_id = api.submit(marked(f"{what}-2", 3))
        with product.redis() as link:
            LOST[what](link)  # and between the wake-up and its fetching

        assert api.ended(batch_id, 75)["status"] == "completed"
        if when == "running":
            assert api.ended(running, 75)["status"] == "completed"


def test_wake_ups_that_come_again_and_again_send_no_line_twice(
    product: Product, engine: Witness
) -> None:
    """A redelivered task finds the lane taken, beside the first or in it."""
    with Batches(product, product.key("again", "batch")) as api:
        batch_id = api.submit(marked("again", 20))
        product.manage(
            "shell", "--no-imports", "-c",
            "from portal.batches import bell\nfor _ in range(20): bell.ring()",
        )  # fmt: skip
        batch = api.ended(batch_id, 60)

    assert batch["request_counts"]["completed"] == 20
    assert len(engine.records("again")) == 20


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_task_longer_than_the_visibility_timeout_sends_no_line_twice(
    product: Product, engine: Witness
) -> None:
    """While one task works for a minute its message is delivered again every ten seconds."""
    with Batches(product, product.key("slow", "batch")) as api:
        batch = api.ended(api.submit(marked("slow", 440)), 150)

    assert batch["request_counts"]["completed"] == 440
    assert len(engine.records("slow")) == 440
