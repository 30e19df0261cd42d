"""Kept connections: the engine may close one at any moment, and nobody notices."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.core.management import call_command

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import SECRET_KEY, bearer, chat
from tests.gateway.wire.test_leaving import connect
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until


@pytest.mark.parametrize(
    ("clients", "idle_s"),
    [
        pytest.param(30, 0.2),
        pytest.param(200, 0.2, marks=pytest.mark.long),
        pytest.param(200, 5.0, marks=pytest.mark.long),  # what vLLM and llama.cpp really do
    ],
)
async def test_the_idle_close_race_never_shows(
    make_gateway: Callable[..., Stage], clients: int, idle_s: float
) -> None:
    """An engine that closes idle connections just as we use them costs no request.

    Each client uses its connection ten times around that moment.
    """
    stage = make_gateway(Script(slots=clients, idle_close_s=idle_s))
    caps = {"in_flight": clients, "queued": clients}
    secret = stage.books.key(**caps, person=caps)
    url = f"{stage.gateway.url}/v1/chat/completions"
    dice = random.Random(clients)

    async def use(link: httpx.AsyncClient) -> list[str]:
        bad = []
        for number in range(10):
            body = chat(max_tokens=1, stream=bool(number % 3))
            answer = await link.post(url, headers=bearer(secret), json=body)
            if answer.status_code != 200 or '"error"' in answer.text:
                bad.append(f"{number}: {answer.status_code} {answer.text[-300:]}")
            await asyncio.sleep(idle_s + dice.uniform(-0.02, 0.02))
        return bad

    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(timeout=60, limits=limits) as link:
        found = await asyncio.gather(*(use(link) for _ in range(clients)))

    assert [bad for bad in found if bad] == []
    records = stage.books.records()
    assert {r.outcome for r in records} == {"served"}
    assert len(records) == 10 * clients


def test_a_request_that_meets_the_closing_of_its_connection_is_sent_again(
    make_gateway: Callable[..., Stage],
) -> None:
    """Where request and closing cross, the client notices nothing and the metric counts it."""
    stage = make_gateway(Script(slots=4, closes_on_reuse=0.3))
    secret = stage.books.key(in_flight=4)

    with stage.client(secret) as client:
        for number in range(60):
            body = chat(max_tokens=1, stream=bool(number % 2))
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert '"error"' not in answer.text

    page = httpx.get(f"{stage.gateway.url}/metrics").text
    assert int(float(page.partition("\nfairway_resent_total ")[2].split()[0])) > 5
    wait_until(lambda: len(stage.books.records()) == 60, 3, "a record of each")
    assert len(stage.witness.records()) == 60


def test_an_engine_that_closes_after_each_stream_costs_nothing(
    make_gateway: Callable[..., Stage],
) -> None:
    """Unannounced closing after every streamed answer, as llama.cpp does it, shows nowhere."""
    stage = make_gateway(Script(kind="llamacpp", slots=4, close_after_stream=True), kind="llamacpp")
    secret = stage.books.key(in_flight=4)

    with stage.client(secret) as client:
        for number in range(60):
            body = chat(max_tokens=2, stream=bool(number % 2))
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert '"error"' not in answer.text


def test_the_queue_command_says_who_runs(make_gateway: Callable[..., Stage], settings: Any) -> None:
    """`manage.py queue` asks the running gateway and prints user, class, model and engine."""
    stage = make_gateway(Script(slots=1, hang_after=1))
    settings.GATEWAY_URL, settings.SECRET_KEY = stage.gateway.url, SECRET_KEY
    link = connect(stage, stage.books.key("erin"), chat(stream=True))
    wait_until(lambda: bool(stage.gateway.live()["running"]), 5, "it runs")

    table, raw = io.StringIO(), io.StringIO()
    call_command("queue", stdout=table)
    call_command("queue", "--json", stdout=raw)
    link.close()

    for word in ("u-erin", "interactive", "witness", "r1"):
        assert word in table.getvalue()
    assert json.loads(raw.getvalue())["running"][0]["user_id"] == "u-erin"
