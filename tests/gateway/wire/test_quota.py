"""Counted limits at the gate: two gateways, one ledger in Redis, one number everywhere."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from quotas.snapshots import counters
from quotas.snapshots.credentials import Credential, sign
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import SECRET_KEY, Books, GatewayProcess, bearer, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

PROMPT, ANSWER = 5, 95  # what the witness counts for "hello there", and the length of its answers
ROUNDS = int(os.environ.get("QUOTA_ROUNDS", "2"))  # 20 of 20 was tried; the suite is short of time
Gateways = tuple[Stage, Stage]


@pytest.fixture(scope="module")
def pair(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """Run two gateways that share one ledger, in front of one engine."""
    redis_url = redis_server.replace("db=0", "db=2")
    assert redis_url != redis_server
    store = redis.Redis.from_url(redis_url)
    store.flushdb()
    folder = tmp_path_factory.mktemp("quota")
    witness = Witness(folder, Script(slots=64, tokens=ANSWER)).start()
    books = Books(store)
    books.engine(witness.url, slots=64)
    settings = {"LEDGER": "redis", "GATEWAY_PROCESSES": "2"}
    gateways = [GatewayProcess(folder, redis_url, settings).start() for _ in range(2)]
    for gateway in gateways:
        gateway.wait_up()
        wait_until(lambda one=gateway: is_ready(one), 20, "the ledger is open", every_s=0.1)
    yield Stage(gateways[0], books, witness), Stage(gateways[1], books, witness)
    for gateway in gateways:
        gateway.stop()
    witness.stop()


def is_ready(gateway: GatewayProcess) -> bool:
    return httpx.get(f"{gateway.url}/readyz").status_code == 200


@pytest.fixture(autouse=True)
def _tidy(pair: Gateways) -> Iterator[None]:
    yield
    pair[0].witness.reset()
    pair[0].gateway.wait_settled(10)


def open_key(stage: Stage, name: str, **limits: Any) -> str:
    """Return a key whose caps are in nobody's way."""
    person = {"in_flight": 64, "queued": 64} | limits.pop("person", {})
    return stage.books.key(name, in_flight=64, queued=64, person=person, **limits)


async def at_once(pair: Gateways, secret: str, count: int, **body: Any) -> list[httpx.Response]:
    """Send the same request many times, to both gateways in turn."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=30, limits=limits, trust_env=False) as client:
        return await asyncio.gather(
            *(
                client.post(
                    f"{pair[n % 2].gateway.url}/v1/chat/completions",
                    json=chat(**body), headers=bearer(secret),
                )
                for n in range(count)
            )
        )  # fmt: skip


def card(stage: Stage, secret: str, name: str, per: str = "person") -> dict[str, Any]:
    """Return one line of the quota card."""
    answer = httpx.get(f"{stage.gateway.url}/v1/key", headers=bearer(secret))
    assert answer.status_code == 200, answer.text
    (found,) = (
        line
        for line in answer.json()["quotas"]
        if (line["name"], line["per"], line["service_class"]) == (name, per, "interactive")
    )
    return dict(found)


def post(stage: Stage, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask what only the portal and tests may ask."""
    credential = sign(SECRET_KEY, Credential("live", "", time.time() + 60))
    answer = httpx.post(
        f"{stage.gateway.url}/internal/{path}", json=body, headers=bearer(credential)
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def settled(stage: Stage, secret: str, name: str, used: int) -> None:
    """Wait until the limit holds exactly this much."""
    seen: list[int] = []

    def look() -> bool:
        seen.append(card(stage, secret, name)["used"])
        return seen[-1] == used

    wait_until(look, 10, f"{used} are used; seen {seen[-3:]}", every_s=0.05)


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_of_fifty_at_once_only_what_is_left_is_admitted(pair: Gateways, number: int) -> None:
    """
    1,000 tokens left, 50 requests of up to 1,000 over two gateways: one passes, the rest are told
    which limit binds; it settles to 100 exactly, and then the next one that fits passes.
    """
    secret = open_key(pair[0], f"fifty{number}", person={"tokens_per_day": 1000})
    pair[0].witness.tell(first_delay_s=0.5)

    answers = await at_once(pair, secret, 50, max_tokens=980)

    assert Counter(a.status_code for a in answers) == {200: 1, 429: 49}
    for answer in answers:
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 0
        if answer.status_code == 429:
            told = answer.json()["error"]["quota"]
            assert 0 <= told["used"] <= told["limit"] == 1000
    settled(pair[1], secret, "tokens_per_day", PROMPT + ANSWER)
    again = await at_once(pair, secret, 50, max_tokens=880)
    assert Counter(a.status_code for a in again) == {200: 1, 429: 49}
    settled(pair[0], secret, "tokens_per_day", 2 * (PROMPT + ANSWER))


async def test_of_thirty_long_streams_ten_fit_the_day(pair: Gateways) -> None:
    """
    A day that holds ten reservations admits ten of thirty streams started together.
    """
    tiny = open_key(pair[0], "tiny", person={"tokens_per_day": 1})
    (refused,) = await at_once(pair, tiny, 1, max_tokens=ANSWER)
    each = refused.json()["error"]["quota"]["requested"]
    secret = open_key(pair[0], "thirty", person={"tokens_per_day": 10 * each})
    pair[0].witness.tell(decode_tps=100)

    answers = await at_once(pair, secret, 30, max_tokens=ANSWER, stream=True)

    assert Counter(a.status_code for a in answers) == {200: 10, 429: 20}
    settled(pair[0], secret, "tokens_per_day", 10 * (PROMPT + ANSWER))


async def test_a_refusal_names_the_limit_and_says_when_to_come_back(pair: Gateways) -> None:
    """
    `insufficient_quota` for the day: name, level, used, limit, reset; not to be tried again soon.
    """
    secret = open_key(pair[0], "told", group={"tokens_per_day": 300, "tokens_per_month": 10**6})
    (first,) = await at_once(pair, secret, 1, max_tokens=200)
    (answer,) = await at_once(pair, secret, 1, max_tokens=200)

    assert first.status_code == 200
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert error["code"] == error["type"] == "insufficient_quota"
    quota = error["quota"]
    assert (quota["name"], quota["per"], quota["limit"]) == ("tokens_per_day", "group", 300)
    assert quota["used"] == PROMPT + ANSWER
    tomorrow = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=1)
    midnight_s = dt.datetime.combine(tomorrow, dt.time(), dt.UTC).timestamp()
    assert quota["resets_at"] == midnight_s
    wait_s = int(answer.headers["retry-after"])
    assert abs(wait_s - (midnight_s - time.time())) < 5
    assert answer.headers.get("x-should-retry") == ("false" if wait_s > 60 else None)
    assert answer.headers["x-ratelimit-limit-tokens"] == "300"


async def test_a_minute_is_a_rate_limit(pair: Gateways) -> None:
    """
    The fourth of three requests a minute is `rate_limit_exceeded`; 20 s later one more passes.
    """
    secret = open_key(pair[0], "minute", person={"requests_per_minute": 3})
    answers = [*await at_once(pair, secret, 2), *await at_once(pair, secret, 2)]

    assert sorted(a.status_code for a in answers) == [200, 200, 200, 429]
    (refused,) = (a for a in answers if a.status_code == 429)
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert error["quota"]["name"] == "requests_per_minute"
    assert 15 <= int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-limit-requests"] == "3"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    post(pair[0], "advance", {"ms": 20_000})
    (later,) = await at_once(pair, secret, 1)
    assert later.status_code == 200


@pytest.mark.parametrize("per", ["key", "person", "group"])
@pytest.mark.parametrize(
    ("name", "limit"),
    [("requests_per_minute", 1), *((f"tokens_per_{w}", 150) for w in ("minute", "day", "month"))],
)
async def test_each_counted_limit_binds(pair: Gateways, name: str, limit: int, per: str) -> None:
    """
    Whatever it counts and over whom: the first request fits, the second is refused by its name.
    """
    who = f"{name}-{per}"
    if per == "key":
        secret = open_key(pair[0], who, **{name: limit})
    else:
        secret = open_key(pair[0], who, group_id=f"g-{who}", **{per: {name: limit}})
    first, second = [(await at_once(pair, secret, 1, max_tokens=95))[0] for _ in range(2)]

    assert (first.status_code, second.status_code) == (200, 429)
    told = second.json()["error"]["quota"]
    assert (told["name"], told["per"], told["limit"]) == (name, per, limit)


async def test_screen_header_and_gate_tell_one_number(pair: Gateways) -> None:
    """
    The card of either gateway, the portal's question and the header of an answer agree.
    """
    secret = open_key(pair[0], "same", person={"tokens_per_month": 5000})
    await at_once(pair, secret, 3, max_tokens=100)
    settled(pair[0], secret, "tokens_per_month", 3 * (PROMPT + ANSWER))
    here, there = (card(stage, secret, "tokens_per_month") for stage in pair)
    portal = post(pair[1], "quota", {"limits": [{**here, "identity": "u-same"}]})["quotas"]
    (answer,) = await at_once(pair, secret, 1, max_tokens=1)

    assert here == there == portal[0]
    assert (here["used"], here["remaining"]) == (300, 4700)
    left = int(answer.headers["x-ratelimit-remaining-tokens"])
    assert 4700 - left == answer_reserves(pair, secret)


def answer_reserves(pair: Gateways, secret: str) -> int:
    """Return what a request of one token reserves: told when it can never fit."""
    tiny = pair[0].books.key("reserves", person={"tokens_per_month": 1})
    refused = pair[0].ask(tiny, chat(max_tokens=1))
    assert refused.json()["error"]["code"] == "request_exceeds_limit"
    return int(refused.json()["error"]["quota"]["requested"])


async def test_an_answer_is_no_longer_than_what_was_reserved(pair: Gateways) -> None:
    """
    A client that names no length gets what the limit has room for, and is told so.
    """
    secret = open_key(pair[0], "unstated", person={"tokens_per_day": 60})
    (answer,) = await at_once(pair, secret, 1)

    bound = int(answer.headers["x-fairway-max-tokens"])
    assert 0 < bound < 60
    assert answer.json()["usage"]["completion_tokens"] == bound


async def test_what_did_not_run_costs_no_tokens(pair: Gateways) -> None:
    """
    Refused by the engine: nothing. Left by its client: what had been generated by then.
    """
    secret = open_key(pair[0], "nothing", person={"tokens_per_day": 10_000})
    pair[0].witness.tell(fail_status=400)
    (refused,) = await at_once(pair, secret, 1, max_tokens=500)
    assert refused.status_code == 400
    settled(pair[1], secret, "tokens_per_day", 0)

    pair[0].witness.reset()
    pair[0].witness.tell(decode_tps=20)
    with (
        pair[0].client(secret) as client,
        client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=90)) as s,
    ):
        next(part for part in s.iter_raw() if b"w3" in part)
    pair[0].gateway.wait_settled(10)
    assert 4 <= card(pair[0], secret, "tokens_per_day")["used"] < 40


async def test_people_behind_an_application_key_have_their_own(pair: Gateways) -> None:
    """
    The header names the flow on an application key only; elsewhere it changes nothing.
    """
    limits = {"person": {"tokens_per_day": 150}}
    shared = open_key(pair[0], "webui", end_user_header="X-User", **limits)
    plain = open_key(pair[0], "plain", **limits)

    def used_up(secret: str, user: str) -> bool:
        with pair[0].client(secret) as client:
            answer = client.post(
                "/v1/chat/completions", json=chat(max_tokens=100), headers={"X-User": user}
            )
        pair[0].gateway.wait_settled(10)
        return answer.status_code == 429

    assert [used_up(shared, user) for user in ("ann", "ann", "ben", "ben")] == [
        False, True, False, True,
    ]  # fmt: skip
    assert [used_up(plain, user) for user in ("ann", "ben")] == [False, True]


async def test_after_a_loss_the_books_fill_the_counters_before_anybody_passes(
    pair: Gateways,
) -> None:
    """
    While the books have not said what was used nobody passes; then the floor is theirs.
    """
    books = pair[0].books
    secret = open_key(pair[0], "loss", person={"tokens_per_day": 1000})
    await at_once(pair, secret, 2, max_tokens=100)
    today = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    books.redis.flushdb()
    seen = set()

    def refused() -> bool:
        answer = pair[0].ask(secret, chat(max_tokens=100))
        if answer.status_code != 200:
            seen.add((answer.status_code, answer.json()["error"]["code"]))
        return (503, "directory_unavailable") in seen

    wait_until(refused, 10, "refused while it is unknown", every_s=0.2)
    books.generation = "two"
    books.used = {counters.field(today, "interactive", "person", "u-loss"): 950}
    books.publish()
    for stage in pair:
        wait_until(lambda one=stage: is_ready(one.gateway), 20, "open again", every_s=0.1)
    assert card(pair[1], secret, "tokens_per_day")["used"] >= 950
    wait_until(
        lambda: pair[0].ask(secret, chat(max_tokens=100)).status_code == 429, 10, "binds again"
    )
