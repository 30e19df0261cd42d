"""Bytes: they arrive as the engine sent them, whatever the network does in between."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import random
import socket
import zlib
from collections.abc import Iterator

import httpx
import pytest

from tests.rig import checkers
from tests.rig.chat import Caller, chat
from tests.rig.engine_script import Script
from tests.rig.product import Product
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault
LETTERS = 'aé漢字🙂\u200d🧪\u0000\r\n\t"\\'


def events(text: str) -> bytes:
    """Return a stream that carries `text` and ends well."""
    parts = [text[at : at + 3] for at in range(0, len(text), 3)]
    chunks = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in parts]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    usage = {"prompt_tokens": 5, "completion_tokens": len(parts), "total_tokens": 5 + len(parts)}
    chunks.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def told(data: bytes) -> str:
    """Return bytes as the script carries them."""
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("cut", ["byte", "seed:1", "seed:2", ""])
async def test_text_survives_any_cut(
    client: Caller, witness: Witness, keys: dict[str, str], cut: str
) -> None:
    """Texts of many-byte characters arrive byte for byte however the network splits them."""
    dice = random.Random(cut)
    for number in range(25):
        text = "".join(dice.choice(LETTERS) for _ in range(dice.randrange(1, 40)))
        body = events(text)
        witness.tell(answer_b64=told(body), cut=cut)
        asked = chat("witness", f"cut{cut}/{number}", stream_options={"include_usage": True})
        call = await client.ask(keys["dora"], asked)
        assert call.body == body
        assert call.text == text


@pytest.mark.parametrize("size", [65_537, 5 * 2**20])
async def test_a_huge_event_arrives_whole(
    client: Caller, witness: Witness, keys: dict[str, str], size: int
) -> None:
    """A single event of five mebibytes (tool arguments, say) is delivered as it is."""
    body = events("x" * 30) + b"data: " + b'{"choices":[],"pad":"' + b"p" * size + b'"}\n\n'
    witness.tell(answer_b64=told(body))
    asked = chat("witness", f"huge/{size}", stream_options={"include_usage": True})
    call = await client.ask(keys["dora"], asked)
    assert call.sha256 == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
@pytest.mark.parametrize("accepts", ["identity", "gzip, deflate"])
async def test_compression_decodes_to_the_engines_text(
    product: Product, witness: Witness, keys: dict[str, str],
    stream: bool, encoding: str, accepts: str,
) -> None:  # fmt: skip
    """Whatever an engine compresses and a client accepts, the client reads the engine's text."""
    plain = events("hello") if stream else json.dumps(
        {"choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
    ).encode()  # fmt: skip
    packed = {"": plain, "gzip": gzip.compress(plain), "deflate": zlib.compress(plain)}[encoding]
    witness.tell(answer_b64=told(packed), answer_encoding=encoding)
    mark = f"packed/{stream}-{encoding}-{accepts[:2]}"
    asked = chat("witness", mark, stream=stream)
    if stream:
        asked["stream_options"] = {"include_usage": True}
    async with httpx.AsyncClient(verify=False) as reader:
        answer = await reader.post(
            f"{product.url}/v1/chat/completions", json=asked,
            headers={"Authorization": f"Bearer {keys['dora']}", "Accept-Encoding": accepts,
                     "X-Request-Id": mark},
        )  # fmt: skip
    assert answer.status_code == 200
    assert answer.content == plain
    (row,) = product.usage(mark)
    assert row["prompt_tokens"] == 5
    assert not row["estimated"]


@pytest.mark.parametrize("value", [False, None, "absent"])
async def test_a_plain_answer_is_json(client: Caller, keys: dict[str, str], value: object) -> None:
    """Without stream, with false or null, the answer is one JSON object and no event stream."""
    body = chat("witness", f"plain/{value}")
    del body["stream"]
    if value != "absent":
        body["stream"] = value
    call = await client.ask(keys["dora"], body)
    assert call.headers["content-type"].startswith("application/json")
    assert json.loads(call.body)["choices"]


@pytest.mark.parametrize("size", [32 * 1024, 64 * 1024, 2_621_441, 8 * 2**20])
async def test_large_prompts_pass(client: Caller, keys: dict[str, str], size: int) -> None:
    """Bodies far above usual buffers reach the engine, or are refused for their tokens."""
    body = chat("witness", f"large/{size}", stream=False)
    body["messages"].insert(0, {"role": "user", "content": "word" * (size // 4)})
    call = await client.ask(keys["dora"], body)
    assert call.status in (200, 400), call.body[:300]
    assert call.status == 200 or call.code in {"context_length_exceeded", "prompt_too_long"}


def raw(product: Product, data: bytes, wait_s: float = 3) -> bytes:
    """Send bytes as they are; return all that comes back until the peer closes or is silent."""
    answer = b""
    with socket.create_connection(("127.0.0.1", product.port), timeout=wait_s) as link:
        link.sendall(data)
        try:
            while piece := link.recv(65_536):
                answer += piece
        except (TimeoutError, ConnectionError):
            pass
    return answer


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLING = {
    "length_and_chunked": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two_lengths": b"Content-Length: 0\r\nContent-Length: 35\r\n\r\n",
    "odd_chunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "signed_length": b"Content-Length: +0\r\n\r\n",
    "bad_chunk_size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "space_before_colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_a_second_request_is_never_hidden(
    product: Product, keys: dict[str, str], name: str
) -> None:
    """Where two parties could disagree on a request's end, it is refused and the line closed."""
    head = HEAD + f"Authorization: Bearer {keys['dora']}\r\n".encode()
    answer = await asyncio.to_thread(raw, product, head + SMUGGLING[name] + HIDDEN)
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1, answer


async def test_an_endless_body_is_cut(product: Product, keys: dict[str, str]) -> None:
    """A chunked body without end is refused once it passes the limit."""
    head = HEAD + f"Authorization: Bearer {keys['dora']}\r\n".encode()

    def pour() -> bytes:
        with socket.create_connection(("127.0.0.1", product.port), timeout=10) as link:
            link.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
            try:
                for _ in range(64):
                    link.sendall(chunk)
            except ConnectionError:
                pass
            try:
                return link.recv(65_536)
            except ConnectionError:
                return b""

    answer = await asyncio.to_thread(pour)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413"), answer[:200]


PRIORITIES = {
    "number": '"priority": -31337',
    "text": '"priority": "-31337"',
    "nested": '"extra_body": {"priority": -31337}',
    "twice": '"priority": 5, "priority": -31337',
    "escaped": '"prior\\u0069ty": -31337',
}


@pytest.fixture(scope="module")
def ranked(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Run an engine that orders its own queue by a priority."""
    engine = Witness(tmp_path_factory.mktemp("ranked"), Script(model="ranked", slots=8)).start()
    product.manage("addengine", engine.url, "--slots", "8", "--takes-priority", "--json")
    yield engine
    engine.stop()


@pytest.mark.parametrize("name", PRIORITIES)
async def test_nobody_jumps_the_queue_inside_the_engine(
    product: Product, ranked: Witness, keys: dict[str, str], name: str
) -> None:
    """Whatever priority a client writes, the engine reads ours, and a batch key's comes later."""
    seen: dict[str, int] = {}
    for owner in ("dora", "fritz"):
        mark = f"jump/{name} {owner}"
        body = json.dumps(chat("ranked", mark, stream=False))[:-1] + f", {PRIORITIES[name]}}}"
        async with httpx.AsyncClient(verify=False, timeout=30) as sender:
            answer = await sender.post(
                f"{product.url}/v1/chat/completions", content=body,
                headers={"Authorization": f"Bearer {keys[owner]}",
                         "Content-Type": "application/json"},
            )  # fmt: skip
        assert answer.status_code in (200, 400), answer.text
        for record in ranked.records():
            if record.mark == mark:
                assert "31337" not in record.body
                assert record.body.count('"priority"') == 1
                seen[owner] = record.json["priority"]
    assert all(priority < 0 for priority in seen.values()), seen  # so that strangers come last
    assert len(seen) < 2 or seen["dora"] < seen["fritz"]  # lower is sooner


@pytest.mark.parametrize("number", [200, pytest.param(1000, marks=pytest.mark.long)])
async def test_every_request_is_seen_to_end(
    client: Caller, witness: Witness, keys: dict[str, str], number: int
) -> None:
    """Of many requests on kept connections, streams and not, each ends when the engine ends it."""
    late_s = []
    for one in range(number):
        mark = f"ends/{number}-{one}"
        body = chat("witness", mark, stream=one % 2 == 0)
        if one % 2 == 0:
            body["stream_options"] = {"include_usage": True}
        call = await client.ask(keys["dora"], body)
        assert call.whole, (call.status, call.broke, call.body[:200])
        late_s.append(call.ended_s)
    ended_s = {record.mark: record.ended_s or 0.0 for record in witness.records("ends")}
    late_s = sorted(seen_s - ended_s[f"ends/{number}-{one}"] for one, seen_s in enumerate(late_s))
    print(f"seen after the engine's end: median {late_s[number // 2] * 1000:.1f} ms,"
          f" slowest {late_s[-1] * 1000:.1f} ms")  # fmt: skip
    # A busy machine may hold up some; a body whose end is not marked would hold up every one.
    assert late_s[number // 2] < 0.05


async def test_what_orders_and_shares_is_ours(
    client: Caller, witness: Witness, keys: dict[str, str]
) -> None:
    """A client's priority and cache salt never reach the engine; nor does its key or cookie."""
    body = chat("witness", "ours/1", priority=-1000, cache_salt="mine", request_id="mine",
                extra_body={"priority": -5})  # fmt: skip
    call = await client.ask(keys["fritz"], body, headers={"Cookie": "session=secret"})
    assert call.status in (200, 400)
    seen = [r for r in witness.records() if r.mark == "ours/1"]
    for record in seen:
        assert record.json.get("priority") != -1000
        assert record.json.get("cache_salt") != "mine"
        assert "mine" not in record.body
        names = {name for name, _ in record.headers}
        assert not names & {"authorization", "cookie"}
        assert checkers.secret_free(keys["fritz"], {"engine": str(record)}) == []
