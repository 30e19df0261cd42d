"""What HTTP may look like here: strict heads, bounded bodies, errors in shape, no redirects."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable

import httpx
import pytest

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import bearer, chat
from tests.rig.engine_script import Script

HIDDEN = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


def talk(stage: Stage, raw: bytes, *, wait_s: float = 2.0) -> bytes:
    """Send bytes and return everything that comes back until the connection closes."""
    link = socket.create_connection(("127.0.0.1", stage.gateway.port), wait_s)
    seen = b""
    try:
        link.sendall(raw)
        while data := link.recv(65536):
            seen += data
    except (TimeoutError, ConnectionResetError, BrokenPipeError):
        pass
    finally:
        link.close()
    return seen


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
SMUGGLED = [
    HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello" + HIDDEN,
    HEAD + b"content-length: 5, 5\r\n\r\nhello" + HIDDEN,
    HEAD + b"content-length: +5\r\n\r\nhello" + HIDDEN,
    HEAD + b"content-length: 5 5\r\n\r\nhello" + HIDDEN,
    HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"transfer-encoding: chunked\r\n\r\n5 ;x\r\nhello\r\n0\r\n\r\n" + HIDDEN,
    HEAD + b"transfer-encoding: chunked\r\n\r\n5\nhello\n0\n\n" + HIDDEN,
    HEAD.replace(b"\r\n", b"\n") + b"content-length: 0\n\n" + HIDDEN,
    HEAD + b"x-bad name: 1\r\n\r\n" + HIDDEN,
    HEAD + b"x-folded: a\r\n b\r\n\r\n" + HIDDEN,
    HEAD + b"x-nul: a\x00b\r\n\r\n" + HIDDEN,
    HEAD + b"host: y\r\ncontent-length: 0\r\n\r\n" + HIDDEN,
    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 0\r\n\r\n" + HIDDEN,
    b"POST http://elsewhere/v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN,
    b"GARBAGE\r\n\r\n" + HIDDEN,
    b"GET / HTTP/9.9\r\nhost: x\r\n\r\n" + HIDDEN,
    HEAD + b"x-long: " + b"a" * 70_000 + b"\r\n\r\n" + HIDDEN,
    HEAD + b"".join(b"x-%d: 1\r\n" % n for n in range(200)) + b"\r\n" + HIDDEN,
]


@pytest.mark.parametrize("raw", SMUGGLED)
def test_an_ambiguous_request_is_refused_and_nothing_after_it_is_read(
    stage: Stage, raw: bytes
) -> None:
    """400 in shape and the connection closed; the request hidden behind it is never answered."""
    seen = talk(stage, raw)

    assert seen.count(b"HTTP/1.1 ") == 1, seen
    assert seen.startswith(b"HTTP/1.1 400 "), seen
    assert json.loads(seen.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_a_head_that_never_ends_is_cut(stage: Stage) -> None:
    """An endless header costs us no more than the limit."""
    seen = talk(stage, HEAD + b"x: " + b"a" * 10_000_000)

    assert seen.count(b"HTTP/1.1 ") <= 1


SHAPED = ("message", "type", "param", "code")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/chat/completions/", 404),
        ("POST", "/v1/models/", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("POST", "/v1/tokenize", 404),
        ("POST", "/v1/rerank", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/internal/nothing", 404),
        ("GET", "/internal/live", 403),
    ],
)
def test_errors_are_in_shape_and_never_redirects(
    stage: Stage, method: str, path: str, status: int
) -> None:
    """Unknown paths, trailing slashes and wrong methods get an error object with all four keys."""
    answer = httpx.request(method, stage.gateway.url + path)

    assert answer.status_code == status
    assert set(SHAPED) <= answer.json()["error"].keys()
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_what_cannot_be_a_key_is_refused_without_a_look_up(stage: Stage, name: str) -> None:
    """A typo, a truncated, an extended and a foreign key are all 401, with Bearer asked for."""
    good = stage.books.key()
    before = stage.books.redis.info("commandstats").get("cmdstat_hmget", {}).get("calls", 0)

    for shown in ("", "x", good[:-1], good + "0", good.swapcase(), "sk-" + "a" * 48, "é" * 43):
        raw = f"Bearer {shown}" if name == "authorization" else shown
        head = HEAD + name.encode() + b": " + raw.encode() + b"\r\nconnection: close\r\n"
        seen = talk(stage, head + b"content-length: 2\r\n\r\n{}")
        assert seen.startswith(b"HTTP/1.1 401 "), seen
        assert b"www-authenticate: Bearer" in seen

    after = stage.books.redis.info("commandstats")["cmdstat_hmget"]["calls"]
    assert after - before < 8  # the poll goes on meanwhile


def test_x_api_key_opens_the_door_too(stage: Stage) -> None:
    """Clients of /v1/messages send their key in x-api-key."""
    secret = stage.books.key()

    answer = httpx.get(f"{stage.gateway.url}/v1/models", headers={"x-api-key": secret})

    assert [model["id"] for model in answer.json()["data"]] == ["witness"]


def test_bodies_up_to_the_limit_pass_and_no_further(make_gateway: Callable[..., Stage]) -> None:
    """Everything up to the limit passes; one byte more, or a body without an end, is a 413."""
    stage = make_gateway(Script(slots=2), BODY_LIMIT_MIB="4")
    secret = stage.books.key()
    limit = 4 << 20
    bare = len(json.dumps(chat("")))
    with stage.client(secret) as client:
        for size in (32 << 10, 64 << 10, (5 << 19) + 1, limit):
            raw = json.dumps(chat("x" * (size - bare)))
            assert len(raw) == size
            assert client.post("/v1/chat/completions", content=raw).status_code == 200
    with stage.client(secret) as client:
        answer = client.post("/v1/chat/completions", content=b"x" * (limit + 1))
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
        assert answer.headers["connection"] == "close"

    endless(stage)


def endless(stage: Stage) -> None:
    """A chunked body without an end gets its 413 and costs bounded memory."""
    secret = stage.books.key()
    before = stage.gateway.memory_kib
    link = socket.create_connection(("127.0.0.1", stage.gateway.port), 5)
    head = f"authorization: Bearer {secret}\r\ntransfer-encoding: chunked\r\n\r\n"
    link.sendall(HEAD + head.encode())
    sent, seen = 0, b""
    try:
        while sent < 200 << 20:
            link.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent += 65536
    except OSError:
        pass
    with contextlib.suppress(OSError):  # the answer may be lost; the bound is what counts
        seen = link.recv(65536)
    link.close()

    assert sent < 24 << 20
    assert not seen or seen.startswith(b"HTTP/1.1 413 ")
    assert stage.gateway.memory_kib - before < 16 * 1024


def test_metrics_are_for_this_machine_only(stage: Stage) -> None:
    """Loopback may read /metrics; whoever a proxy speaks for may not."""
    url = f"{stage.gateway.url}/metrics"

    assert "fairway_requests_total" in httpx.get(url).text
    assert httpx.get(url, headers={"x-forwarded-for": "8.8.8.8"}).status_code == 404
    assert httpx.get(f"{stage.gateway.url}/readyz").json()["ready"] is True


def test_models_and_key_take_no_slot(stage: Stage) -> None:
    """Reading the models, the key and the queue works while the key's only slot is taken."""
    secret = stage.books.key(in_flight=1, allowed_models=("witness",))
    stage.witness.tell(hang_after=1)
    with stage.client(secret) as client, stage.client(secret) as second:
        with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as running:
            lines = running.iter_lines()  # kept: a dropped iterator closes the stream
            next(lines)
            assert second.get("/v1/models").status_code == 200
            assert second.get("/v1/models/witness").json()["id"] == "witness"
            key = second.get("/v1/key").json()
            assert (key["in_flight"], key["limits"]["key"]) == (1, {"in_flight": 1})
            assert second.get("/v1/queue").json()["data"] == []
        assert second.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_a_model_that_is_not_allowed_does_not_exist(stage: Stage) -> None:
    """A key that may use other models only gets the same 404 as for a model nobody has."""
    secret = stage.books.key(allowed_models=("other",))

    assert stage.ask(secret).json()["error"]["code"] == "model_not_found"
    assert stage.ask(secret, model="nobody").json()["error"]["code"] == "model_not_found"
    with stage.client(secret) as client:
        assert client.get("/v1/models", headers=bearer(secret)).json()["data"] == []


@pytest.mark.parametrize("bad", [b"", b"[]", b"{", b"null", b'{"model":"witness"}'])
def test_a_bad_body_takes_no_slot(stage: Stage, bad: bytes) -> None:
    """Each refused body is followed by a good request on a key with one slot."""
    secret = stage.books.key(in_flight=1)

    with stage.client(secret) as client:
        assert client.post("/v1/chat/completions", content=bad).status_code == 400
        assert client.post("/v1/chat/completions", json=chat()).status_code == 200
