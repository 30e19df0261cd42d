"""Batch beside people who chat, and one person's beside another's, by the engine's books."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.batches.helpers import jsonl, line
from tests.batches.patient import Batches, marked
from tests.rig.chat import chat
from tests.rig.engine_script import Script
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Record, Witness

pytestmark = [pytest.mark.journey, pytest.mark.timeout(240)]
MODEL, SLOTS = "shared-card", 4


@pytest.fixture(scope="module")
def card(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Run an engine of this module's own behind the shared product."""
    script = Script(model=MODEL, slots=SLOTS, tokens=2, first_delay_s=0.15)
    engine = Witness(tmp_path_factory.mktemp("card"), script).start()
    product.manage("addengine", engine.url, "--slots", str(SLOTS), "--json")
    yield engine
    engine.stop()


@contextmanager
def saturated(product: Product, secrets: list[str]) -> Iterator[None]:
    """Keep more people chatting than the card has slots, each asking again at once."""
    over = threading.Event()

    def talk(secret: str) -> None:
        headers = {"authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=product.url, headers=headers, timeout=60) as client:
            while not over.is_set():
                client.post("/v1/chat/completions", json=chat(MODEL, "chatter/x"))

    threads = [threading.Thread(target=talk, args=[s], daemon=True) for s in secrets * 2]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def test_a_saturated_card_still_moves_a_batch_after_ten_minutes(
    product: Product, card: Witness
) -> None:
    """
    While chats keep every slot, no line of a batch starts; once its lines have waited ten minutes
    of ledger time, one does.
    """
    people = product.keys(**{f"talker{n}": "interactive" for n in range(6)}, patient="batch")
    with Batches(product, people.pop("patient")) as api:
        with saturated(product, list(people.values())):
            wait_until(lambda: card.counters()["running"] == SLOTS, 40, "the card is full")
            batch_id = api.submit(marked("patient", 2, MODEL))
            wait_until(lambda: api.batch(batch_id)["lines_running"], 40, "lines wait at the gate")
            time.sleep(1.5)
            early = [r for r in card.records("patient") if r.slot_s is not None]
            product.advance(601)
            wait_until(lambda: card.records("patient"), 40, "an aged line starts")
        assert early == []
        assert api.ended(batch_id, 60)["status"] == "completed"


def test_ten_lines_have_half_the_card_beside_a_long_batch(product: Product, card: Witness) -> None:
    """
    From the first to the last of ten lines another person's long batch starts no more lines than
    these, but for those of one round: the ten end in at most twice their time alone.
    """
    secrets = product.keys(many="batch", few="batch")
    with Batches(product, secrets["many"]) as long, Batches(product, secrets["few"]) as short:
        long_id = long.submit(marked("many", 1000, MODEL))
        wait_until(lambda: len(card.records("many")) > 20, 30, "the long batch is under way")
        ended = short.ended(short.submit(marked("few", 10, MODEL)), 90)
        long.patiently("POST", f"/v1/batches/{long_id}/cancel")

    assert ended["request_counts"]["completed"] == 10
    few = card.records("few")
    first, last = min(map(started, few)), max(map(started, few))
    beside = [r for r in card.records("many") if first <= started(r) <= last]
    assert len(beside) <= 10 + SLOTS


def started(record: Record) -> float:
    """Return when a request was given its slot."""
    return record.slot_s or float("inf")


def test_lines_that_cannot_run_leave_the_others_alone(product: Product, card: Witness) -> None:
    """What the engine refuses of three lines is their own error; 37 of 40 are answered."""
    no = {
        name: json.dumps({"error": {"message": f"{name} is wrong", "type": "BadRequestError"}})
        for name in ("context", "max_tokens", "grammar")
    }
    rules = {f"odd/{name}": {"fail_status": 400, "fail_body": body} for name, body in no.items()}
    card.tell(rules=rules)
    bad = [
        line(
            name, model=MODEL, messages=[{"role": "user", "content": f"[mark:odd/{name}] " + text}]
        )
        for name, text in zip(no, ("word " * 9000, "", ""), strict=True)
    ]
    with Batches(product, product.key("odd", "batch")) as api:
        batch = api.ended(api.submit(jsonl(bad) + marked("odd", 37, MODEL)), 90)
        rows = {row["custom_id"]: row["response"] for row in api.rows(batch)}
    card.reset()

    assert batch["status"] == "completed"
    failed = {name: row for name, row in rows.items() if row["status_code"] != 200}
    assert {name: row["body"]["error"]["message"] for name, row in failed.items()} == {
        name: f"{name} is wrong" for name in no
    }
    assert batch["request_counts"] == {"total": 40, "completed": 37, "failed": 3}
