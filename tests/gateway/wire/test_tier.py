"""`service_tier` of one request: flex runs as batch, and nothing makes batch run as interactive."""

from __future__ import annotations

import json

import pytest

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat


@pytest.mark.parametrize(
    ("key_class", "asked", "ran_as"),
    [
        ("interactive", "flex", "batch"),
        ("interactive", "priority", "interactive"),
        ("interactive", None, "interactive"),
        ("batch", "default", "batch"),
        ("batch", "flex", "batch"),
    ],
)
def test_flex_runs_as_batch_and_batch_stays_batch(
    stage: Stage, key_class: str, asked: str | None, ran_as: str
) -> None:
    """The header and the usage row name the class it ran in; the engine never sees the field."""
    secret = stage.books.key(service_class=key_class)
    body = chat(f"[mark:tier-{key_class}-{asked}/1] x") | ({"service_tier": asked} if asked else {})

    answer = stage.ask(secret, body)

    assert answer.status_code == 200
    assert answer.headers["x-fairway-class"] == ran_as
    assert "x-fairway-dropped-fields" not in answer.headers
    record = stage.books.record_of(answer.headers["x-request-id"])
    assert record.service_class == ran_as
    assert "service_tier" not in stage.witness.records(f"tier-{key_class}-{asked}")[0].body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("asked", "named"), [("flex", "flex"), ("auto", "default"), (None, None)])
def test_the_answer_names_the_tier_to_who_asked(
    stage: Stage, asked: str | None, named: str | None, stream: bool
) -> None:
    """Each chunk and each plain answer names the tier used, and only where one was asked for."""
    body = chat(stream=stream) | ({"service_tier": asked} if asked else {})

    answer = stage.ask(stage.books.key(), body)

    lines = answer.text.splitlines() if stream else [f"data: {answer.text}"]
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert told
    assert {one.get("service_tier") for one in told} == {named}
