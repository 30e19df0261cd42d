"""What a body may ask for, and what an engine gets of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.fields import BadField, Kind, Orders, Rules, build, read
from tests.gateway.wire.stage import chat

RULES = Rules(media_hosts=frozenset({"pictures.example"}))


def asked(body: Any, kind: Kind = Kind.CHAT) -> Any:
    """Read a body."""
    return read(kind, body if isinstance(body, bytes) else json.dumps(body).encode(), RULES)


def sent(body: Any, kind: Kind = Kind.CHAT, **orders: Any) -> dict[str, Any]:
    """Return what the engine gets."""
    orders = {"model": "m", "stream": False, **orders}
    found: dict[str, Any] = json.loads(build(asked(body, kind), Orders(**orders)))
    return found


SLY = (
    b'{"model":"m","priority":-1000,"messages":[{"role":"user","content":"x"}],'
    b'"priority":-2000,"extra_body":{"priority":-3},"id_slot":1,"n_predict":-1,'
    b'"vllm_xargs":{"priority":-4},"cache_salt":"mine","kv_transfer_params":{},'
    b'"request_id":"r","use_beam_search":true,"n_cmpl":9,"chat_template":"{{x}}"}'
)


def test_what_decides_about_others_is_ours_alone() -> None:
    """Priority, slots and caches are set by the gateway: strings, nested and duplicates too."""
    body = sent(SLY, priority=-5, cache_salt="ours")

    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "stream": False,
        "priority": -5,
        "cache_salt": "ours",
    }


def test_the_last_of_two_names_counts_once() -> None:
    """A duplicate name reaches the engine once, with the value that was checked."""
    raw = b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":1,"n":3}'

    assert asked(raw).weight == 3
    assert sent(raw)["n"] == 3


def test_a_tool_may_have_a_parameter_named_priority() -> None:
    """Only fields of the request are ours; what stands in a tool's schema is the user's."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"priority": {}}}}]

    assert sent(chat(tools=tools))["tools"] == tools


def test_unknown_fields_are_dropped_and_named() -> None:
    """A field outside the list does not reach the engine, and the client is told."""
    assert asked(chat(surprise=1)).dropped == ("surprise",)
    assert "surprise" not in sent(chat(surprise=1))


@pytest.mark.parametrize("stream", [None, False, 0, "false"])
def test_stream_said_in_any_way_to_be_off_is_off(stream: Any) -> None:
    """What is not a clear yes gets a plain answer."""
    assert asked(chat(stream=stream)).stream is False


@pytest.mark.parametrize("wanted", [True, False])
def test_usage_is_always_asked_of_a_stream(wanted: bool) -> None:
    """A stream is asked for its usage; whether the client did is remembered."""
    body = chat(stream=True, stream_options={"include_usage": wanted, "other": 1})

    assert sent(body, stream=True)["stream_options"] == {"include_usage": True}
    assert asked(body).include_usage is wanted


def test_usage_is_not_asked_where_engines_refuse_it() -> None:
    """Routes that know no stream_options get none."""
    body = {"model": "m", "input": "x", "stream": True}

    assert "stream_options" not in sent(body, Kind.RESPONSES, stream=True)
    assert "stream_options" not in sent({"model": "m", "input": "x"}, Kind.EMBEDDINGS)


@pytest.mark.parametrize(
    ("kind", "body", "weight"),
    [
        (Kind.CHAT, chat(n=3), 3),
        (Kind.COMPLETIONS, {"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 4}, 8),
        (Kind.COMPLETIONS, {"model": "m", "prompt": [1, 2, 3]}, 1),
        (Kind.COMPLETIONS, {"model": "m", "prompt": [[1, 2], [3]]}, 2),
        (Kind.EMBEDDINGS, {"model": "m", "input": ["a"] * 2048}, 1),
    ],
)
def test_weight_is_the_number_of_sequences(kind: Kind, body: Any, weight: int) -> None:
    """n or best_of times the number of prompts; embeddings weigh one."""
    assert asked(body, kind).weight == weight


BAD: list[tuple[Any, Kind, str | None]] = [
    (b"", Kind.CHAT, None),
    (b"[]", Kind.CHAT, None),
    (b'{"model":"m"', Kind.CHAT, None),
    (b'{"model":NaN}', Kind.CHAT, None),
    (b'{"a":' * 2000, Kind.CHAT, None),
    ({"messages": [{"role": "user", "content": "x"}]}, Kind.CHAT, "model"),
    ({"model": 7, "messages": []}, Kind.CHAT, "model"),
    ({"model": "m"}, Kind.CHAT, "messages"),
    ({"model": "m", "messages": []}, Kind.CHAT, "messages"),
    ({"model": "m", "messages": "x"}, Kind.CHAT, "messages"),
    ({"model": "m", "messages": ["x"]}, Kind.CHAT, "messages"),
    ({"model": "m", "messages": [{"content": "x"}]}, Kind.CHAT, "messages"),
    (chat(max_tokens=0), Kind.CHAT, "max_tokens"),
    (chat(max_tokens=-1), Kind.CHAT, "max_tokens"),
    (chat(max_tokens=True), Kind.CHAT, "max_tokens"),
    (chat(max_tokens="5"), Kind.CHAT, "max_tokens"),
    (chat(max_completion_tokens=2**63), Kind.CHAT, "max_completion_tokens"),
    (chat(n=0), Kind.CHAT, "n"),
    (chat(service_tier="gold"), Kind.CHAT, "service_tier"),
    (chat(service_tier=["flex"]), Kind.CHAT, "service_tier"),
    (chat(stream="yes"), Kind.CHAT, "stream"),
    ({"model": "m", "prompt": "x", "n": 3, "best_of": 2}, Kind.COMPLETIONS, "best_of"),
    ({"model": "m", "prompt": [1, -2]}, Kind.COMPLETIONS, "prompt"),
    ({"model": "m", "prompt": [{}]}, Kind.COMPLETIONS, "prompt"),
    ({"model": "m", "input": ["a"] * 2049}, Kind.EMBEDDINGS, "input"),
    ({"model": "m", "input": ""}, Kind.EMBEDDINGS, "input"),
]


@pytest.mark.parametrize(("body", "kind", "param"), BAD)
def test_bad_bodies_are_refused_with_the_field(body: Any, kind: Kind, param: str | None) -> None:
    """What cannot be run as asked is refused, naming the field."""
    with pytest.raises(BadField) as refused:
        asked(body, kind)

    assert refused.value.param == param


def picture(url: str) -> dict[str, Any]:
    """Return a chat body with a picture."""
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"model": "m", "messages": [{"role": "user", "content": [part]}]}


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "https://elsewhere.example/x.png",
        "file:///etc/passwd",
        "https://pictures.example@evil.example/x",
        "https://me@pictures.example/x",
        "//pictures.example/x",
        "http://[::1",
        " data:image/png;base64,xx",
    ],
)
def test_an_engine_fetches_no_address_of_a_users_choice(url: str) -> None:
    """Remote addresses in content parts are refused, however they are spelled."""
    with pytest.raises(BadField) as refused:
        asked(picture(url))

    assert refused.value.code == "remote_media_refused"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.MESSAGES, {"model": "m", "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "http://x.example/"}}]}]}),
        (Kind.RESPONSES, {"model": "m", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "http://x.example/"}]}]}),
        (Kind.RESPONSES, {"model": "m", "input": [{"role": "user", "content": [
            {"type": "input_file", "file_url": "http://x.example/"}]}]}),
        (Kind.CHAT, {"model": "m", "messages": [{"role": "user", "content": [
            {"type": "video_url", "video_url": {"url": "http://x.example/"}}]}]}),
    ],
)  # fmt: skip
def test_remote_media_is_refused_in_every_shape(kind: Kind, body: Any) -> None:
    """The rule holds on each route."""
    with pytest.raises(BadField):
        asked(body, kind)


def test_data_and_listed_hosts_are_let_through() -> None:
    """Inline data passes, and so do hosts the installation lists; text may hold any address."""
    for url in ("data:image/png;base64,AAAA", "DATA:x", "https://pictures.example/a.png"):
        assert asked(picture(url)).images == 1
    assert asked(chat("see http://x.example/")).images == 0


def test_a_limit_on_output_is_set_where_the_client_set_none() -> None:
    """An engine never runs to the end of its context because nobody said when to stop."""
    assert sent(chat(), max_tokens=50)["max_tokens"] == 50
    assert sent(chat(max_completion_tokens=9), max_tokens=50) == {
        **chat(max_completion_tokens=9, model="m"),
        "stream": False,
    }
