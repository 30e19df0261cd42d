"""SIGTERM, slow readers, and the portal behind the same door."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import httpx
import pytest

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import bearer, chat
from tests.gateway.wire.test_leaving import connect, read_until
from tests.rig.engine_script import Script
from tests.rig.serving import serve
from tests.rig.waiting import wait_until

Make = Callable[..., Stage]


def test_sigterm_lets_streams_end_and_sends_the_queue_away(make_gateway: Make) -> None:
    """Running streams finish whole, queued ones get 503 with Retry-After, then it is gone."""
    stage = make_gateway(Script(slots=1, decode_tps=20, tokens=60))
    secret = stage.books.key(in_flight=1)
    running = connect(stage, secret, chat(stream=True, max_tokens=40))
    read_until(running, b"w1 ")
    queued = connect(stage, secret, chat())
    wait_until(lambda: bool(stage.gateway.live()["queued"]), 5, "one waits")
    assert stage.gateway.process is not None
    stage.gateway.process.send_signal(signal.SIGTERM)

    away = read_until(queued, b"}}")
    rest = read_until(running, b"[DONE]")

    assert away.startswith(b"HTTP/1.1 503 ")
    assert b"shutting_down" in away
    assert b"retry-after: 1" in away
    assert b"w39 " in rest
    assert stage.gateway.process.wait(10) is not None
    outcomes = {r.outcome for r in stage.books.records()}
    assert outcomes == {"served", "evicted_shutting_down"}
    running.close()
    queued.close()


def test_the_drain_has_a_limit(make_gateway: Make) -> None:
    """A stream that does not end is cut after the limit, and recorded."""
    stage = make_gateway(Script(slots=1, hang_after=2), DRAIN_S="1")
    secret = stage.books.key()
    running = connect(stage, secret, chat(stream=True))
    read_until(running, b"w1 ")
    began = time.monotonic()
    stage.gateway.stop()

    assert time.monotonic() - began < 6
    assert [r.outcome for r in stage.books.records()] == ["failed"]
    running.close()


def test_slow_readers_hold_no_slot_and_no_memory(make_gateway: Make) -> None:
    """The engine is read at full speed; who reads nothing is cut when buffer and time are used up.

    A short answer ends at the engine, with its slot free, while its reader still sleeps. A long
    one stops at the buffer's limit and both its connections are closed in the end.
    """
    stage = make_gateway(
        Script(slots=1, tokens=200_000), CLIENT_STALL_S="2", STREAM_BUFFER_KIB="1024"
    )
    secret = stage.books.key(in_flight=1)
    short = connect(stage, secret, chat(stream=True, max_tokens=4000))
    wait_until(lambda: len(stage.books.records()) == 1, 10, "the engine has ended")
    assert stage.books.records()[0].outcome == "served"
    stage.gateway.wait_settled(2)
    before = stage.gateway.memory_kib

    long = connect(stage, secret, chat(stream=True, max_tokens=200_000))
    wait_until(lambda: bool(stage.gateway.live()["running"]), 5, "it runs")
    stage.gateway.wait_settled(20)
    wait_until(lambda: len(stage.books.records()) == 2, 2, "a record")
    short.close()
    long.close()

    assert stage.gateway.memory_kib - before < 16 * 1024
    assert stage.books.records()[1].outcome == "aborted"


class Portal(ThreadingMixIn, UnixStreamServer):
    """A portal that tells what it was sent."""

    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    """Answers with the request's head and the size of its body."""

    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        size = 0
        if self.headers.get("transfer-encoding") == "chunked":
            while count := int(self.rfile.readline(), 16):
                size += len(self.rfile.read(count))
                self.rfile.readline()
            self.rfile.readline()
        else:
            left = int(self.headers.get("content-length", 0))
            while left:
                data = self.rfile.read(min(left, 65536))
                size += len(data)
                left -= len(data)
        if self.path.startswith("/big"):
            self.send_response(200)
            self.send_header("content-length", str(64 << 20))
            self.end_headers()
            for _ in range(1024):
                self.wfile.write(b"x" * 65536)
            return
        body = json.dumps(
            {"method": self.command, "path": self.path, "size": size,
             "headers": {k.lower(): v for k, v in self.headers.items()}}
        ).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("set-cookie", "session=1")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_PUT = do_GET  # noqa: N815 (names the library looks for)


@pytest.fixture
def portal(stage: Stage) -> Iterator[Portal]:
    """Run a portal on the gateway's socket."""
    path = stage.gateway.folder / "portal.sock"
    Path(path).unlink(missing_ok=True)
    server = Portal(str(path), Handler)
    serve(server)
    yield server
    server.shutdown()
    server.server_close()
    path.unlink()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/accounts/login/?next=/a%20b"), ("POST", "/v1/files"),
     ("GET", "/v1/batches/batch_1"), ("DELETE", "/v1/files/x"), ("GET", "/static/a.css")],
)  # fmt: skip
def test_what_is_not_the_gateways_goes_to_the_portal(
    stage: Stage, portal: Portal, method: str, path: str
) -> None:
    """Path, query and method arrive as they were; where the request came from is our word."""
    answer = httpx.request(
        method, stage.gateway.url + path,
        headers={"X-Forwarded-For": "6.6.6.6", "X-Real-IP": "6.6.6.6", "Cookie": "c=1"},
    )  # fmt: skip

    told = answer.json()
    assert (told["method"], told["path"]) == (method, path)
    assert told["headers"]["x-forwarded-for"] == "127.0.0.1"
    assert "x-real-ip" not in told["headers"]
    assert told["headers"]["cookie"] == "c=1"
    assert told["headers"]["host"] == f"127.0.0.1:{stage.gateway.port}"
    assert told["headers"]["x-request-id"] == answer.headers["x-request-id"]
    assert answer.headers["set-cookie"] == "session=1"


def test_files_stream_both_ways_in_flat_memory(stage: Stage, portal: Portal) -> None:
    """64 MiB up, with and without a length, and 64 MiB down cost a few MiB."""
    before = stage.gateway.memory_kib

    def pieces() -> Iterator[bytes]:
        for _ in range(1024):
            yield b"x" * 65536

    url = f"{stage.gateway.url}/v1/files"
    for headers in ({}, {"content-length": str(64 << 20)}):
        told = httpx.post(url, content=pieces(), headers=headers, timeout=60).json()
        assert told["size"] == 64 << 20
    with httpx.stream("GET", f"{stage.gateway.url}/big", timeout=60) as answer:
        assert sum(map(len, answer.iter_bytes())) == 64 << 20

    assert stage.gateway.memory_kib - before < 16 * 1024


def test_a_portal_that_is_down_is_said_in_the_readers_words(stage: Stage) -> None:
    """503 with Retry-After: JSON for programs, a page for browsers, models unaffected."""
    program = httpx.get(f"{stage.gateway.url}/v1/files")
    browser = httpx.get(f"{stage.gateway.url}/", headers={"accept": "text/html,*/*"})

    assert program.status_code == browser.status_code == 503
    assert program.headers["retry-after"] == browser.headers["retry-after"] == "2"
    assert program.json()["error"]["code"] == "portal_unavailable"
    assert "One moment" in browser.text
    assert httpx.get(f"{stage.gateway.url}/v1/models", headers=bearer(stage.books.key())).is_success
