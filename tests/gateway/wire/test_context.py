"""What a model's context cannot hold is refused before anybody waits, where that is certain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat

CONTEXT = 100


@pytest.fixture
def small(stage: Stage) -> Iterator[Stage]:
    """Give the model a small context."""
    before = stage.books.pools
    stage.books.pools = tuple(replace(pool, context=CONTEXT) for pool in before)
    stage.books.publish()
    yield stage
    stage.books.pools = before
    stage.books.publish()


def post(stage: Stage, path: str, body: dict[str, Any]) -> httpx.Response:
    """Send a body to a route."""
    with stage.client(stage.books.key()) as client:
        return client.post(path, json={"model": "witness", **body})


IDS, CHAT, TEXT = list(range(80)), "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat("hi", max_tokens=101), "max_tokens"),
        (CHAT, chat("hi", max_completion_tokens=101), "max_tokens"),
        (TEXT, {"prompt": IDS, "max_tokens": 21}, "max_tokens"),
        (TEXT, {"prompt": IDS * 2}, None),
        (TEXT, {"prompt": [IDS, IDS + IDS]}, None),
        (CHAT, chat("x" * 256 * 101), None),
    ],
)
def test_what_certainly_does_not_fit_is_refused(
    small: Stage, path: str, body: dict[str, Any], param: str | None
) -> None:
    """Prompt and answer beyond the context: 400 in OpenAI's words, and the engine hears nothing."""
    known = len(small.witness.records())

    answer = post(small, path, body)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded"), answer.text
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert f"{CONTEXT} tokens" in error["message"]
    assert len(small.witness.records()) == known


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat("word " * 500, max_tokens=1)),  # may be few tokens: who knows
        (CHAT, chat("hi", max_tokens=99)),
        (TEXT, {"prompt": IDS, "max_tokens": 20}),
        (TEXT, {"prompt": [IDS, IDS], "max_tokens": 20}),
        ("/v1/embeddings", {"input": [IDS] * 4}),
    ],
)
def test_what_may_fit_is_the_engines_to_judge(
    small: Stage, path: str, body: dict[str, Any]
) -> None:
    """Only the engine counts tokens of a text, and several prompts need a context each."""
    assert post(small, path, body).status_code == 200


@pytest.mark.parametrize("tokens", [0, -1, -5, 2**40, 1.5, "8", True])
def test_a_length_that_is_no_length_is_refused(stage: Stage, tokens: object) -> None:
    """llama.cpp would take 0 for one token and -1 for no end: neither gets there."""
    for name in ("max_tokens", "max_completion_tokens"):
        answer = post(stage, CHAT, chat("hi", **{name: tokens}))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name), answer.text


def test_no_length_is_named_where_only_the_context_binds(small: Stage) -> None:
    """An engine that bounds an answer itself is not asked for a context beside the prompt."""
    assert post(small, CHAT, chat("[mark:unnamed/1] hi")).status_code == 200

    sent = next(r.json for r in small.witness.records() if r.mark == "unnamed/1")
    assert "max_tokens" not in sent
