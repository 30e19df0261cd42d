"""In front of a real llama.cpp server: the same answers as its own, and counts that add up."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from tests.gateway.wire.stage import Books, GatewayProcess, bearer, chat
from tests.rig.llama import Llama
from tests.rig.waiting import wait_until


class Real:
    """A gateway in front of a real engine."""

    def __init__(self, gateway: GatewayProcess, books: Books, llama: Llama) -> None:
        self.gateway, self.books, self.llama = gateway, books, llama
        self.secret = books.key(in_flight=4)

    def both(self, path: str, body: dict[str, Any]) -> tuple[httpx.Response, httpx.Response]:
        """Ask the engine itself, then the gateway."""
        own = httpx.post(self.llama.url + path, json=body, timeout=60)
        ours = httpx.post(
            self.gateway.url + path, json=body, headers=bearer(self.secret), timeout=60
        )
        return own, ours


@pytest.fixture(scope="module")
def real(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Run both."""
    folder = tmp_path_factory.mktemp("real")
    llama = Llama(folder).start()
    url = redis_server.replace("db=0", "db=14")
    store = redis.Redis.from_url(url)
    store.flushdb()
    books = Books(store)
    books.engine(llama.url, pool="tiny", kind="llamacpp", slots=4)
    gateway = GatewayProcess(folder, url).start()
    gateway.wait_up()
    yield Real(gateway, books, llama)
    gateway.stop()
    llama.stop()


CHANGES = {"id", "created", "created_at", "completed_at", "timings"}


def shape(value: Any, path: str = "") -> Any:
    """Return an answer without what differs between two runs of the same request."""
    if isinstance(value, dict):
        return {
            name: len(inner) if name == "top_logprobs" else shape(inner, f"{path}.{name}")
            for name, inner in value.items()
            if name not in CHANGES
        }
    if isinstance(value, list):
        return [shape(inner, path) for inner in value]
    # Probabilities differ in the last digits with what else is in the batch.
    return "a number" if isinstance(value, float) else value


TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]  # fmt: skip
FIXED = {"temperature": 0, "seed": 7, "cache_prompt": False}
REQUIRED = {"tools": TOOLS, "tool_choice": "required"}
ONCE = {"model": "tiny", "prompt": "Once upon a time"}
ASKED = [
    ("/v1/chat/completions", chat("Name three fruits.", "tiny", max_tokens=12, **FIXED)),
    ("/v1/chat/completions", chat("Hi", "tiny", max_tokens=8, logprobs=True, **FIXED)),
    ("/v1/chat/completions", chat("Hi", "tiny", max_tokens=8, n=2, **FIXED)),
    ("/v1/chat/completions", chat("Hi", "tiny", max_tokens=1, stop=["a"], **FIXED)),
    ("/v1/chat/completions", chat("Hi", "tiny", max_tokens=60, **REQUIRED, **FIXED)),
    ("/v1/chat/completions", chat("Hi", "tiny", max_tokens=40, response_format={
        "type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}, **FIXED)),
    ("/v1/completions", {**ONCE, "max_tokens": 8, **FIXED}),
    ("/v1/completions", {**ONCE, "max_tokens": 5, "logprobs": 2, **FIXED}),
    ("/v1/messages", {"model": "tiny", "messages": [{"role": "user", "content": "Name fruits."}],
                      "max_tokens": 5, "temperature": 0}),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": [
        {"role": "user", "content": "Name three fruits."}]}),
    ("/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 5, "temperature": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_an_assembled_answer_equals_the_engines_own(real: Real, path: str, body: Any) -> None:
    """Field by field the same as asked directly, although the engine was made to stream."""
    own, ours = real.both(path, body)

    assert ours.status_code == own.status_code == 200, (own.text, ours.text)
    mine, theirs = shape(ours.json()), shape(own.json())
    for answer in (mine, theirs):  # ids of items and cached counts differ by run
        for item in answer.get("output", []):
            item.pop("id", None)
        for choice in answer.get("choices", []):
            for call in choice.get("message", {}).get("tool_calls", []) or []:
                call.pop("id", None)
        usage = answer.get("usage", {})
        for name in ("prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"):
            usage.pop(name, None)
        if "/messages" in path:
            usage.pop("input_tokens", None)
    assert mine == theirs
    assert {*ours.json()} == {*own.json()}


def test_tokens_add_up_with_the_engines_own_counters(real: Real) -> None:
    """
    Streamed or not, one choice or several, our sums equal the increase of llama.cpp's counters,
    difference 0, although it names the tokens of one choice only.
    """
    before, ids = real.llama.counters(), []
    for number in range(8):
        body = chat(f"Count to {number}", "tiny", max_tokens=7 + number, stream=bool(number % 2))
        if number > 5:
            body["n"] = 2
        answer = httpx.post(
            f"{real.gateway.url}/v1/chat/completions",
            json=body, headers=bearer(real.secret), timeout=60,
        )  # fmt: skip
        ids.append(answer.headers["x-request-id"])
    records = [real.books.record_of(one) for one in ids]
    after = real.llama.counters()

    grown = {name: after[name] - before[name] for name in after}
    assert sum(r.completion_tokens for r in records) == grown["tokens_predicted_total"]
    assert sum(r.prompt_tokens for r in records) == (
        grown["prompt_tokens_total"] + grown["prompt_tokens_cached_total"]
    )
    assert {r.estimated for r in records} == {False}


@pytest.mark.parametrize("stream", [True, False])
def test_the_engine_lets_go_while_others_stream(real: Real, stream: bool) -> None:
    """A client that leaves frees its slot in llama.cpp too, although another stream goes on."""
    url, headers = f"{real.gateway.url}/v1/chat/completions", bearer(real.secret)
    long = chat("Tell me", "tiny", max_tokens=1500, ignore_eos=True, stream=True)
    with httpx.Client(timeout=60) as other, httpx.Client(timeout=60) as leaver:  # noqa: SIM117
        with other.stream("POST", url, json=long, headers=headers) as going:
            lines = going.iter_lines()
            next(lines)
            with contextlib.suppress(httpx.TimeoutException):
                leaver.post(url, json={**long, "stream": stream}, headers=headers, timeout=0.25)
            wait_until(lambda: real.llama.busy_slots() <= 1, 2, "the slot is free in the engine")
    wait_until(lambda: real.llama.busy_slots() == 0, 5, "all slots are free")
    real.gateway.wait_settled()


def test_reused_connections_never_show(real: Real) -> None:
    """200 streamed and plain requests in a row, around the engine's closings: no error."""
    with httpx.Client(timeout=60, headers=bearer(real.secret)) as client:
        for number in range(100):
            body = chat(f"n {number}", "tiny", max_tokens=1, stream=bool(number % 3))
            answer = client.post(f"{real.gateway.url}/v1/chat/completions", json=body)
            assert answer.status_code == 200
            assert '"error"' not in answer.text
            if number == 50:
                time.sleep(5.05)


def test_what_the_engine_would_take_and_we_do_not(real: Real) -> None:
    """Unknown models and a max_tokens of 0 are refused here; llama.cpp would serve them."""
    headers = bearer(real.secret)
    url = f"{real.gateway.url}/v1/chat/completions"

    unknown = httpx.post(url, json=chat(model="gpt-9"), headers=headers)
    zero = httpx.post(url, json=chat(model="tiny", max_tokens=0), headers=headers)
    long = httpx.post(url, json=chat("w " * 5000, "tiny"), headers=headers, timeout=60)

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert (zero.status_code, zero.json()["error"]["param"]) == (400, "max_tokens")
    assert long.json()["error"]["code"] == "context_length_exceeded", json.dumps(long.json())
