"""A request goes through."""

from __future__ import annotations

import json

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat


def test_plain_answer_is_the_engines(stage: Stage) -> None:
    """A plain answer is the engine's, and leaves one record with its numbers."""
    secret = stage.books.key()

    answer = stage.ask(secret, max_tokens=5)

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 5
    record = stage.books.record_of(answer.headers["x-request-id"])
    assert (record.outcome, record.status, record.completion_tokens) == ("served", 200, 5)
    assert record.prompt_tokens == answer.json()["usage"]["prompt_tokens"]


def test_stream(stage: Stage) -> None:
    """A stream arrives event by event, without the usage chunk nobody asked for."""
    secret = stage.books.key()

    with stage.client(secret) as client:
        with client.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=4)
        ) as answer:
            lines = list(answer.iter_lines())

    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert lines[-2] == "data: [DONE]"
    assert all(event["choices"] for event in events)
    record = stage.books.record_of(answer.headers["x-request-id"])
    assert (record.outcome, record.completion_tokens, record.estimated) == ("served", 4, False)
