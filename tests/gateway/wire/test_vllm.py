"""In front of a real vLLM, named by an address: `VLLM_URL=http://gpu1:8000 make test-vllm`.

The normal suite replays recorded answers; here the engine itself is the witness. It has to be one
that nobody else uses, started with what docs/engines.md says, and for these tests with

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --max-num-seqs 4 --scheduling-policy priority \
        --enable-prefix-caching --enable-prompt-tokens-details

An answer as long as its context has to last for a minute, and the model must not be a toy: beside
one that wrote about 1,150 tokens/s on two cores a look at the metrics took up to 40 seconds, and
these tests look at them all the time. 50 million parameters with a context of 4,096 are right for
a CPU.

One that was started with --api-key is shown it from VLLM_API_KEY.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis

from quotas.snapshots.sealed import seal
from quotas.snapshots.usage import UsageRecord
from tests.gateway.wire.stage import SECRET_KEY, Books, GatewayProcess, bearer
from tests.rig.network import allow
from tests.rig.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

SAMPLE = re.compile(r"^vllm:(\w+)(\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
AT_ONCE = 4  # what --max-num-seqs is expected to be


@dataclass
class RealVllm:
    """The engine, a gateway before it that lets many more requests in, and its books."""

    url: str
    gateway: GatewayProcess
    books: Books
    model: str
    context: int
    own: dict[str, str]  # the header that shows it its own key

    def key(self, owner: str, service_class: str = "interactive") -> str:
        """Return a key that may have a dozen requests at the engine."""
        caps = {"in_flight": 12, "queued": 20}
        return self.books.key(owner, service_class, **caps, person=caps)

    def chat(self, text: str, tokens: int, **rest: Any) -> dict[str, Any]:
        """Return a chat whose answer has exactly so many tokens."""
        said = [{"role": "user", "content": text}]
        fixed = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        return {"model": self.model, "messages": said, "stream": True, **fixed, **rest}

    def ask(self, secret: str, body: dict[str, Any]) -> httpx.Response:
        """Send one chat through the gateway and read all of its answer."""
        url = f"{self.gateway.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=bearer(secret), timeout=120)

    def numbers(self) -> dict[str, float]:
        """Return the engine's own counters, each with its labels after its name."""
        page = httpx.get(f"{self.url}/metrics", timeout=30).text
        found: dict[str, float] = {}
        for name, labels, value in SAMPLE.findall(page):
            reason = re.search(r'finished_reason="(\w+)"', labels)
            full = f"{name}.{reason[1]}" if reason else name
            found[full] = found.get(full, 0.0) + float(value)
        return found

    def inside(self) -> int:
        """Return how many requests run or wait in the engine."""
        now = self.numbers()
        return int(now["num_requests_running"] + now["num_requests_waiting"])

    def wait_idle(self) -> None:
        """Wait until nothing is left, at the gateway and in the engine."""
        self.gateway.wait_settled(60)
        wait_until(lambda: self.inside() == 0, 60, "the engine is idle", every_s=0.2)

    def state(self) -> str:
        """Return the one word the gateway has for it."""
        return str(self.gateway.live()["engines"][0]["state"])


@pytest.fixture(scope="module")
def real(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """Run a gateway in front of the named engine."""
    url = os.environ.get("VLLM_URL", "").rstrip("/")
    if not url:
        pytest.skip("VLLM_URL names no engine")
    allow(urlsplit(url).hostname or "")
    key = os.environ.get("VLLM_API_KEY", "")
    own = bearer(key) if key else {}
    listed = httpx.get(f"{url}/v1/models", headers=own, timeout=30).json()["data"][0]
    address = redis_server.replace("db=0", "db=14")
    store = redis.Redis.from_url(address)
    store.flushdb()
    books = Books(store)
    sealed = seal(SECRET_KEY, key)
    books.engine(url, pool=listed["id"], kind="vllm", slots=40, sealed_key=sealed)
    gateway = GatewayProcess(tmp_path_factory.mktemp("vllm"), address).start()
    gateway.wait_up()
    yield RealVllm(url, gateway, books, listed["id"], listed["max_model_len"], own)
    gateway.stop()


@pytest.fixture(autouse=True)
def _idle(real: RealVllm) -> Iterator[None]:
    """Begin and end with an engine that has nothing to do."""
    real.wait_idle()
    yield
    real.wait_idle()


@dataclass
class Line:
    """A full engine and those who wait inside it, until those who fill it leave one by one.

    Answers that end by themselves would make room for several at once, and nobody could say who
    was first: they are as long as the context lets them be, and plain, because nobody reads them.
    """

    real: RealVllm
    filling: list[socket.socket] = field(default_factory=list)
    began: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Line:
        secret = self.real.key("long")
        for number in range(AT_ONCE):
            tokens = self.real.context - 100
            body = self.real.chat(f"long {number}", tokens, stream=False)
            self.filling.append(self.real.gateway.connect(secret, body))
        wait_until(lambda: self.running() == AT_ONCE, 60, "it is full", every_s=0.1)
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.filling:
            link.close()
        for thread in self.threads:
            thread.join(120)

    def running(self) -> int:
        """Return how many the engine works on."""
        return int(self.real.numbers()["num_requests_running"])

    def waiting(self) -> int:
        """Return how many wait inside it, all of them behind those who fill it."""
        now = self.real.numbers()
        assert now["num_requests_running"] == AT_ONCE, "its longest answers end too soon: context?"
        return int(now["num_requests_waiting"])

    def add(self, name: str, url: str, headers: dict[str, str]) -> None:
        """Send one request and return when it waits in the engine."""
        body = self.real.chat(f"{name} {time.monotonic_ns()}", 20)
        thread = threading.Thread(target=self._follow, args=(name, url, headers, body))
        self.threads.append(thread)
        thread.start()
        wait_until(lambda: self.waiting() == len(self.threads), 60, f"{name} waits", every_s=0.1)

    def ours(self, name: str, secret: str) -> None:
        """Send one through the gateway."""
        self.add(name, self.real.gateway.url, bearer(secret))

    def _follow(self, name: str, url: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        path = f"{url}/v1/chat/completions"
        with httpx.stream("POST", path, json=body, headers=headers, timeout=240) as answer:
            for line in answer.iter_lines():
                # Not its first text: what a model without training says may have none.
                if line.startswith("data: {") and name not in self.began:
                    self.began.append(name)

    def order(self) -> list[str]:
        """Let those that fill it leave, each when the one before has made room; say who began."""
        assert self.waiting() == len(self.threads)
        for number, link in enumerate(self.filling):
            link.close()
            wanted = min(number + 1, len(self.threads))
            wait_until(lambda n=wanted: len(self.began) >= n, 60, f"{wanted} began", every_s=0.01)
        return self.began


def test_the_engine_obeys_the_gateways_order(real: RealVllm) -> None:
    """Behind a full engine chats that came later start before batch that came earlier."""
    chats, batch = real.key("ann"), real.key("ben", "batch")
    with Line(real) as line:
        line.ours("batch1", batch)
        line.ours("batch2", batch)
        line.ours("chat1", chats)
        line.ours("chat2", chats)

        assert line.order() == ["chat1", "chat2", "batch1", "batch2"]


def test_batch_that_has_waited_its_time_goes_first_inside_the_engine_too(real: RealVllm) -> None:
    """Ten minutes older than a fresh chat, a batch request stands before it in vLLM's own queue."""
    chats, batch = real.key("ann"), real.key("ben", "batch")
    with Line(real) as line:
        line.ours("aged", batch)
        later = httpx.post(f"{real.gateway.url}/internal/advance", json={"ms": 601_000})
        later.raise_for_status()
        line.ours("fresh", chats)

        assert line.order() == ["aged", "fresh"]


def test_whoever_passes_us_by_comes_last(real: RealVllm) -> None:
    """A request sent to the engine without us has priority 0 and waits behind all of ours."""
    with Line(real) as line:
        line.add("past us", real.url, real.own)
        line.ours("batch", real.key("ben", "batch"))

        assert line.order() == ["batch", "past us"]


def test_cached_and_all_other_tokens_are_counted_as_the_engine_does(real: RealVllm) -> None:
    """Streamed or plain, our sums equal the increase of vLLM's counters, the cached ones too."""
    secret = real.key("ann")
    before, ids = real.numbers(), []
    words = " ".join(f"word{number}" for number in range(150))
    for number in range(4):
        text = f"{time.monotonic_ns() if number == 0 else ''}{words} {number}"
        answer = real.ask(secret, real.chat(words + text, 6 + number, stream=bool(number % 2)))
        assert answer.status_code == 200, answer.text
        ids.append(answer.headers["x-request-id"])
    records = [real.books.record_of(one) for one in ids]
    after = real.numbers()

    assert None not in {r.cached_tokens for r in records}, "--enable-prompt-tokens-details?"
    assert sum(r.cached_tokens or 0 for r in records) > 0
    for name, mine in {
        "prompt_tokens_total": sum(r.prompt_tokens for r in records),
        "prompt_tokens_cached_total": sum(r.cached_tokens or 0 for r in records),
        "generation_tokens_total": sum(r.completion_tokens for r in records),
    }.items():
        assert mine == after[name] - before[name], name
    assert {r.estimated for r in records} == {False}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("state", ["running", "waiting"])
def test_the_engine_stops_when_the_client_leaves(real: RealVllm, state: str, stream: bool) -> None:
    """Mid-answer or still queued in the engine: it lets go within two seconds and works no more."""
    body = real.chat(f"leave {time.monotonic_ns()}", real.context - 100, stream=stream)
    name = f"num_requests_{state}"
    with contextlib.ExitStack() as stack:
        if state == "waiting":
            stack.enter_context(Line(real))
        link = real.gateway.connect(real.key("ann"), body)
        wait_until(lambda: real.numbers()[name] == 1, 20, "it is in the engine")
        time.sleep(0.5)
        link.close()
        wait_until(lambda: real.numbers()[name] == 0, 2, "the engine has let it go")
    real.wait_idle()
    made = real.numbers()["generation_tokens_total"]
    time.sleep(1)
    assert real.numbers()["generation_tokens_total"] == made


def test_cut_streams_are_counted_up_to_their_last_event(real: RealVllm) -> None:
    """
    Clients that leave mid-stream, several at once so that tokens are packed: the records have what
    came, which is all but what the engine made before it heard of the hang-up.
    """
    secret, before = real.key("ann"), real.numbers()
    known = {r.request_id for r in real.books.records()}
    links = [
        real.gateway.connect(secret, real.chat(f"cut {time.monotonic_ns()}", real.context - 200))
        for _ in range(AT_ONCE)
    ]
    wait_until(
        lambda: real.numbers()["generation_tokens_total"] > before["generation_tokens_total"] + 200,
        60, "they write",
    )  # fmt: skip
    for link in links:
        link.close()
    real.wait_idle()

    def cut() -> list[UsageRecord]:
        return [r for r in real.books.records() if r.request_id not in known]

    wait_until(lambda: len(cut()) == AT_ONCE, 10, "each has its record")
    made = real.numbers()["generation_tokens_total"] - before["generation_tokens_total"]
    counted = sum(r.completion_tokens for r in cut())
    print(f"{counted} of {made:g} tokens of cut streams counted")
    assert made - 20 * AT_ONCE <= counted <= made
    assert {(r.outcome, r.estimated) for r in cut()} == {("aborted", True)}


@pytest.mark.parametrize(("fall", "rise"), [("/sleep?level=1", "/wake_up"), ("/pause", "/resume")])
def test_a_sleeping_engine_is_noticed_and_gets_nothing(
    real: RealVllm, fall: str, rise: str
) -> None:
    """Asleep or paused it answers /health and looks empty: requests wait here until it is back."""
    secret = real.key("ann")
    answer = httpx.post(real.url + fall, timeout=60)
    assert answer.is_success, f"{answer.status_code}: VLLM_SERVER_DEV_MODE=1?"
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(real.ask(secret, real.chat("up", 3))))
    try:
        wait_until(lambda: real.state() == "asleep", 10, f"{fall} is noticed")
        assert httpx.get(f"{real.url}/health", timeout=10).status_code == 200
        thread.start()
        wait_until(lambda: bool(real.gateway.live()["queued"]), 5, "it waits here")
        assert real.inside() == 0
    finally:
        httpx.post(real.url + rise, timeout=60)
    thread.join(60)
    assert found[0].status_code == 200
    assert "[DONE]" in found[0].text
    assert real.state() == "up"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once upon", "max_tokens": 5}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 5}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
    ],
)
def test_every_route_is_counted(real: RealVllm, path: str, body: dict[str, Any]) -> None:
    """Each of its routes, plain and streamed, passes and leaves an exact record."""
    secret = real.key("ann")
    for stream in (False, True):
        answer = httpx.post(
            real.gateway.url + path, headers=bearer(secret), timeout=60,
            json={"model": real.model, **body, "stream": stream, "temperature": 0},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        record = real.books.record_of(answer.headers["x-request-id"])
        assert (record.outcome, record.estimated) == ("served", False), (path, stream, answer.text)
        assert record.prompt_tokens > 0
        assert 0 < record.completion_tokens <= 5


def test_what_the_engine_refuses_comes_in_our_shape(real: RealVllm) -> None:
    """A prompt beyond the context is a 400 with a stable code and the engine's own words."""
    answer = real.ask(real.key("ann"), real.chat("word " * (real.context + 1000), 5))

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
