"""Kept connections: the engine may close one at any moment, and nobody notices."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
from django.core.management import call_command

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import SECRET_KEY, chat
from tests.gateway.wire.test_leaving import connect
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until


def test_the_idle_close_race_never_shows(make_gateway: Callable[..., Stage]) -> None:
    """An engine that closes idle connections just as we use them costs no request.

    It closes after 0.2 s; requests come around that moment, one after the other. What was sent
    into a dead connection is sent again, and counted.
    """
    stage = make_gateway(Script(slots=4, idle_close_s=0.2))
    secret = stage.books.key(in_flight=4)

    with stage.client(secret) as client:
        for number in range(30):
            answer = client.post("/v1/chat/completions", json=chat(max_tokens=1))
            assert answer.status_code == 200, f"request {number}"
            time.sleep(0.19 + 0.002 * (number % 10))

    page = httpx.get(f"{stage.gateway.url}/metrics").text
    assert "fairway_resent_total" in page
    assert {r.outcome for r in stage.books.records()} == {"served"}


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
