"""A part falls silent: the status page lives, says which, and shows no old number as current."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from portal import stores
from portal.health import SocketConnection
from tests.rig.chat import chat
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault
WITHIN_S = 30  # the promise
BACK_S = 60  # no promise; only a busy machine comes near it
OF_THE_ENGINE = (
    "engine_running", "engine_waiting", "kv_usage", "tokens_out_per_s", "tokens_in_per_s",
    "held_interactive", "held_batch", "prefix_hit_rate",
)  # fmt: skip


def page(product: Product, path: str) -> str:
    """Return a page, asked over the portal's own socket: it must not need the gateway."""
    link = SocketConnection(str(stores.run_dir(product.data_dir) / "portal.sock"))
    headers = {"Host": urlsplit(product.url).netloc, "X-Forwarded-Proto": "https"}
    try:
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        text = answer.read().decode()
    finally:
        link.close()
    assert answer.status == 200, text[:500]
    return text


def status(product: Product) -> dict[str, Any]:
    """Return the status as programs read it."""
    found: dict[str, Any] = json.loads(page(product, "/status.json"))
    return found


def engine(product: Product) -> dict[str, Any]:
    """Return what programs are told of the witness engine; others may stand beside it."""
    found: dict[str, Any] = next(e for e in status(product)["engines"] if e["pool"] == "witness")
    return found


def model(product: Product) -> dict[str, Any]:
    """Return what programs are told of the witness engine's model."""
    found: dict[str, Any] = next(m for m in status(product)["models"] if m["model"] == "witness")
    return found


def says_since(product: Product, what: str) -> bool:
    """Tell whether the page says in words since when something is unknown."""
    text = re.sub(r"<[^>]+>|\s+", " ", page(product, "/status/"))
    return re.search(what + r".{0,40}since \d\d:\d\d", text) is not None


def is_well(product: Product) -> bool:
    """Tell whether everything is known; another test's engine may be gone for good."""
    now = status(product)
    if not now["engines"]:
        return False
    parts = (model(product), engine(product), now["worker"], now)
    return all(part["unknown_since"] is None for part in parts)


@contextmanager
def silent(product: Product, part: str) -> Iterator[float]:
    """Let a part of the product stand still; yields when it fell silent."""
    pids = [pid for pid in product.parts()[part] if pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def within(began_s: float, true: Callable[[], bool], what: str) -> None:
    """Wait for what was promised to be seen in time."""
    wait_until(true, began_s + WITHIN_S - time.monotonic(), what, every_s=0.5)


def test_without_redis_or_gateway_the_page_says_so_and_shows_no_queue(doomed: Product) -> None:
    """
    While the scheduler's Redis is silent who runs and who waits is unknown, the engines' own
    numbers go on; while the gateway is, everything is unknown; both with the time since when.
    """
    wait_until(lambda: is_well(doomed), BACK_S, "everything is known")
    with silent(doomed, "valkey") as began_s:
        within(began_s, lambda: status(doomed)["state"] == "unknown", "JSON: queue unknown")
        told = model(doomed)
        assert {told[name] for name in ("slots", "held", "waiting", "waiting_because")} == {None}
        assert set(told["expected_wait_s"].values()) == {None}
        assert told["unknown_since"] is not None
        assert engine(doomed)["engine_running"] is not None
        within(began_s, lambda: says_since(doomed, "waiting line unknown"), "HTML: since when")
        assert "nobody waits" not in page(doomed, "/status/")

    wait_until(lambda: is_well(doomed), BACK_S, "everything is known again")
    with silent(doomed, "gateway") as began_s:
        within(began_s, lambda: status(doomed)["at"] is None, "JSON: everything unknown")
        now = status(doomed)
        assert (now["state"], now["models"], now["engines"]) == ("unknown", [], [])
        assert now["unknown_since"] is not None
        within(began_s, lambda: says_since(doomed, "Unknown"), "HTML: since when")
    wait_until(lambda: is_well(doomed), BACK_S, "everything is known again")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_silent_engine_and_worker_are_named_and_no_rate_is_ever_negative(
    doomed: Product, witness: Witness
) -> None:
    """
    Each figure of a silent engine reads unknown within 30 s, a silent worker is named; after the
    engine and a gateway were killed and came back no rate is below zero.
    """
    wait_until(lambda: is_well(doomed), BACK_S, "everything is known")
    witness.kill(signal.SIGSTOP)
    try:
        with silent(doomed, "worker") as began_s:
            within(began_s, lambda: says_since(doomed, "unknown"), "HTML: engine since when")
            within(
                began_s,
                lambda: engine(doomed)["unknown_since"] is not None,
                "JSON: engine unknown",
            )
            silenced = engine(doomed)
            assert {silenced[name] for name in OF_THE_ENGINE} == {None}
            assert model(doomed)["slots"] is None
            within(began_s, lambda: status(doomed)["worker"]["unknown_since"] is not None, "worker")
            within(began_s, lambda: says_since(doomed, "worker has not reported"), "HTML: worker")
            assert status(doomed)["worker"]["reports"] is False
    finally:
        witness.kill(signal.SIGCONT)
    wait_until(lambda: is_well(doomed), BACK_S, "everything is known again")

    secret = doomed.key("status-watcher")
    headers = {"Authorization": f"Bearer {secret}"}
    body = chat("witness", "watcher", stream=False, max_tokens=8)
    rates: list[float] = []
    for kill in (witness.kill, lambda: doomed.kill("gateway")):
        for _ in range(4):
            httpx.post(f"{doomed.url}/v1/chat/completions", json=body, headers=headers, timeout=30)
        kill()
        if witness.process is None or witness.process.poll() is not None:
            witness.start()
        until_s = time.monotonic() + 12
        while time.monotonic() < until_s:
            for one in status(doomed)["engines"]:
                found = (one["tokens_out_per_s"], one["tokens_in_per_s"])
                rates += [rate for rate in found if rate is not None]
            time.sleep(0.5)
    assert rates
    assert min(rates) >= 0
