"""Engines that die, hang, refuse and lie; what people see of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.rig.chat import Caller, chat
from tests.rig.engine_script import Script
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault


REGISTER = """
from quotas.services import engines
for url in {urls}:
    engines.register(url=url, pool="paired", kind="vllm", slots=4)
"""


@pytest.fixture(scope="module")
def pair(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Witness]]:
    """Run two replicas of one model and register them."""
    folder = tmp_path_factory.mktemp("pair")
    engines = [Witness(folder, Script(model="paired", slots=4)).start() for _ in range(2)]
    urls = [engine.url for engine in engines]
    product.manage("shell", "--no-imports", "-c", REGISTER.format(urls=urls))
    yield engines
    for engine in engines:
        engine.stop()


def engine_state(product: Product, engine: Witness) -> str:
    """Return how the gateway sees an engine; its name carries no address, so ask the books."""
    rows = product.sql("SELECT public_id FROM quotas_replica WHERE url = %s", engine.url)
    live = product.live()["engines"]
    return str(next(e["state"] for e in live if e["replica_id"] == rows[0][0]))


def wait_for(product: Product, engine: Witness, state: str, timeout_s: float) -> None:
    """Wait until the gateway sees the engine in this state."""
    wait_until(lambda: engine_state(product, engine) == state, timeout_s, f"the engine is {state}")


async def test_busy_is_not_dead(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str]
) -> None:
    """An engine that answers 503 to a third of requests stays in, and every request ends well."""
    witness.tell(fail_status=503, fail_share=0.3, fail_body='{"error":{"message":"busy"}}')
    calls = await asyncio.gather(
        *(client.ask(keys[o], chat("witness", f"busy/{o}-{n}")) for n in range(2) for o in keys)
    )
    assert [(call.status, call.body) for call in calls if not call.whole] == []
    assert engine_state(product, witness) in {"up", "busy"}


def states(product: Product, ids: dict[str, str]) -> set[str]:
    """Return the states of these replicas."""
    live = product.live()["engines"]
    return {engine["state"] for engine in live if engine["replica_id"] in ids.values()}


PAGES = ("html", "huge", "empty", "nan", "missing", "hang", "old", "own")


async def test_a_strange_metrics_page_stops_nothing(
    product: Product, client: Caller, keys: dict[str, str], tmp_path: Path
) -> None:
    """Whatever an engine's metrics page says, chats go on; what it does not tell is unknown."""
    engines = {
        page: Witness(tmp_path, Script(model=f"page-{page}", metrics=page)).start()
        for page in PAGES
    }
    try:
        ids = product.engines({engine.script.model: engine.url for engine in engines.values()})
        wait_until(lambda: states(product, ids) <= {"up", "busy"}, 15, "all are up")
        await asyncio.sleep(2.5)
        for page, engine in engines.items():
            call = await client.ask(keys["dora"], chat(engine.script.model, f"metrics/{page}"))
            assert call.whole, (page, call.status, call.body)
        seen = {e["replica_id"]: e for e in product.live()["engines"]}
        told = {p for p in PAGES if seen[ids[engines[p].script.model]]["kv_usage"] is not None}
        assert told == {"old", "own"}
    finally:
        for engine in engines.values():
            engine.stop()


async def test_a_request_that_kills_the_engine_is_not_sent_for_ever(
    product: Product, client: Caller, pair: list[Witness], keys: dict[str, str]
) -> None:
    """A poisonous request is tried at most twice in all and ends as an error."""
    for engine in pair:
        wait_until(lambda engine=engine: is_reset(engine), 15, "it runs")  # another test killed it
        wait_for(product, engine, "up", 15)  # or it would wait a minute for the second
        engine.tell(rules={"poison": {"die": True}})
    call = await client.ask(keys["dora"], chat("paired", "poison/1"))
    seen = [r for engine in pair for r in engine.records() if r.mark == "poison/1"]
    for engine in pair:
        if engine.process is not None and engine.process.poll() is not None:
            engine.start()
    assert 1 <= len(seen) <= 2
    # Once it has waited with its headers out, the error is an event of the stream.
    failed = call.status in (502, 503, 504) or b'data: {"error"' in call.body
    assert failed, (call.status, call.body)
    assert call.code
    for engine in pair:
        wait_for(product, engine, "up", 15)


def stand_up(engine: Witness) -> None:
    """Start an engine that has died, as whatever runs it would."""
    if engine.process is not None and engine.process.poll() is not None:
        engine.start()


def is_reset(engine: Witness) -> bool:
    """Reset it; False while it does not listen yet, or has just died."""
    stand_up(engine)
    try:
        engine.reset()
    except OSError:
        return False
    return True


async def test_a_line_that_kills_the_engine_fails_alone(
    product: Product, pair: list[Witness], keys: dict[str, str]
) -> None:
    """
    A batch with one poisonous line: it is tried a few times and ends in the error file, the other
    lines end well, and nobody sends it again after that.
    """
    for engine in pair:
        wait_until(lambda engine=engine: is_reset(engine), 15, "it runs")
        wait_for(product, engine, "up", 15)
        engine.script = replace(engine.script, rules={"poison-line/bad": {"die": True}})
        engine.reset()
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
         "body": chat("paired", f"poison-line/{name}", stream=False)}
        for name in ("one", "bad", "two", "three")
    ]  # fmt: skip
    content = "".join(json.dumps(line) + "\n" for line in lines)

    def tries() -> int:
        return sum(r.mark == "poison-line/bad" for engine in pair for r in engine.records())

    headers = {"Authorization": f"Bearer {keys['fritz']}"}
    async with httpx.AsyncClient(
        base_url=product.url, headers=headers, timeout=30, verify=False
    ) as client:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content.encode())}}
        stored = (await client.post("/v1/files", **form)).json()
        body = {"input_file_id": stored["id"], "endpoint": "/v1/chat/completions",
                "completion_window": "24h"}  # fmt: skip
        batch = (await client.post("/v1/batches", json=body)).json()
        give_up = time.monotonic() + 90
        while batch["status"] not in ("completed", "failed", "expired"):
            assert time.monotonic() < give_up, (batch, tries())
            for engine in pair:
                stand_up(engine)
            await asyncio.sleep(0.2)
            batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
        errors = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text
    for engine in pair:
        engine.script = replace(engine.script, rules={})
        await asyncio.to_thread(wait_until, partial(is_reset, engine), 10, "it listens again")
    print(f"the poisonous line was sent to an engine {tries()} times")
    assert batch["status"] == "completed"
    counts = batch["request_counts"]
    assert (counts["completed"], counts["failed"]) == (3, 1)
    assert [json.loads(row)["custom_id"] for row in errors.splitlines()] == ["bad"]
    # Three times by the runner, each time by the gateway on two replicas, and once more on each
    # where a kept connection died under it: that may have been the engine's idle limit.
    assert 1 <= tries() <= 12
