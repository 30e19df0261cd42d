"""Limits and reservations as people meet them: all at once, on every route, over four gateways."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.faults.test_quotas import ask_apart, at_once, books_say, card
from tests.rig.chat import Call, Caller, chat
from tests.rig.crowd import capped
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness, peak

pytestmark = pytest.mark.fault


def limit(product: Product, user: str, **values: int) -> None:
    """Set limits of a person from the shell."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    product.manage("setlimit", "--user", user, "--class", "interactive", *flags)


COURSE = """
import datetime as dt
from django.utils import timezone
from quotas.models import Pool, User
from quotas.services import people, reservations
group = people.ensure_group(name="course")
for name in {members}:
    people.move(user=User.objects.get(username=name), group=group)
now = timezone.now()
reservations.reserve(group=group, pool=Pool.objects.get(name="witness"), slots=6,
                     starts_at=now + dt.timedelta(seconds=2), ends_at=now + dt.timedelta(hours=1))
"""


@pytest.mark.long  # gateway/ledger/test_reservations.py holds the rule in every run
async def test_a_course_gets_its_slots_and_others_the_rest(
    doomed: Product, witness: Witness
) -> None:
    """
    While six of eight slots are reserved, people outside the group never have more than two at
    the engine, the course starts at once, and all eight are everybody's again when it is over.
    """
    members, others = ("student1", "student2"), ("passer1", "passer2", "passer3")
    keys = await asyncio.to_thread(
        capped, doomed, dict.fromkeys([*members, *others], ("interactive", 4))
    )
    await asyncio.to_thread(
        doomed.manage, "shell", "--no-imports", "-c", COURSE.format(members=members)
    )

    def reserved() -> dict[str, Any]:
        headers = {"authorization": f"Bearer {keys['passer1']}"}
        answer = httpx.get(f"{doomed.url}/v1/models/witness", headers=headers).json()
        return dict(next(iter(answer.get("reserved", [])), {}))

    await asyncio.to_thread(
        wait_until, lambda: reserved().get("is_running"), 10, "the reservation runs"
    )
    await asyncio.sleep(2)  # every gateway reads the directory once a second
    try:
        await while_reserved(doomed, witness, keys)
    finally:
        await asyncio.to_thread(doomed.manage, "reserve", "--cancel", reservation(doomed))
    await asyncio.to_thread(wait_until, lambda: not reserved(), 10, "it is over")
    await asyncio.sleep(2)
    seen = len(witness.records())
    await crowd(doomed, keys, "passer", "after", 8)
    assert peak([r for r in witness.records()[seen:] if r.mark.startswith("passer")]) > 2


async def crowd(
    product: Product, keys: dict[str, str], who: str, mark: str, each: int
) -> list[Call]:
    """Let everybody whose name begins so send some chats at once."""
    return await asyncio.gather(
        *(
            ask_apart(product, key, f"{name}/{mark}{n}")
            for name, key in keys.items()
            if name.startswith(who)
            for n in range(each)
        )
    )


async def while_reserved(product: Product, witness: Witness, keys: dict[str, str]) -> None:
    """Passers-by in plenty, then the course: what the engine saw of both."""
    witness.tell(first_delay_s=0.4, rules={"student": {"first_delay_s": 3.0}})
    outside = asyncio.create_task(crowd(product, keys, "passer", "while", 8))
    await asyncio.sleep(0.5)
    inside = await crowd(product, keys, "student", "", 3)
    assert [call.code for call in [*inside, *await outside] if not call.whole] == []
    records = witness.records()
    assert peak([r for r in records if r.mark.startswith("passer")]) == 2
    assert peak([r for r in records if r.mark.startswith("student")]) == 6, "the course waited"


def reservation(product: Product) -> str:
    """Return the id of the one reservation."""
    ((number,),) = product.sql("SELECT id FROM quotas_reservation")
    return str(number)


AGAIN = """
from quotas.models import User
from quotas.services import limits
holder = limits.Holder(user=User.objects.get(username="reset"))
same = dict(holder=holder, service_class="interactive", name="tokens_per_day", per="person")
limits.clear_limit(**same)
limits.set_limit(value=50_000, **same)
"""


@pytest.mark.long
async def test_setting_a_limit_anew_forgets_nothing(doomed: Product, witness: Witness) -> None:
    """
    Clearing and setting a limit under twenty streams gives no new day: what was used before it,
    and what ends after it, is counted once, at the gate as in the books.
    """
    keys = await asyncio.to_thread(capped, doomed, {"reset": ("interactive", 64)})
    await asyncio.to_thread(limit, doomed, "reset", tokens_per_day=50_000)
    key = keys["reset"]
    await asyncio.to_thread(
        wait_until, lambda: card(doomed, key, "tokens_per_day"), 10, "it is in force"
    )
    assert {c.status for c in await at_once(doomed, key, "reset", 5, max_tokens=30)} == {200}
    witness.tell(tokens=60, decode_tps=12)
    streams = asyncio.create_task(at_once(doomed, key, "reset/b", 20, max_tokens=60))
    await asyncio.sleep(1)
    await asyncio.to_thread(doomed.manage, "shell", "--no-imports", "-c", AGAIN)
    assert {c.status for c in await streams} == {200}
    witness.tell(decode_tps=0.0)
    await asyncio.to_thread(
        wait_until,
        lambda: 0 < books_say(doomed, "reset") == card(doomed, key, "tokens_per_day").get("used"),
        20, "books and gate agree",
    )  # fmt: skip


FORWARDED = {
    "chat/completions": chat("witness", "walk/chat"),
    "completions": {"model": "witness", "prompt": "x"},
    "embeddings": {"model": "witness", "input": "x"},
    "responses": {"model": "witness", "input": "x"},
    "messages": {
        "model": "witness",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "x"}],
    },
    "messages/count_tokens": {"model": "witness", "messages": [{"role": "user", "content": "x"}]},
}


async def test_no_route_goes_around_the_limits(product: Product, client: Caller) -> None:
    """
    With the minute's one request used up every forwarded route is refused alike; what the
    gateway answers itself costs nothing, and what it does not know is 404.
    """
    key = await asyncio.to_thread(product.key, "walk")
    await asyncio.to_thread(limit, product, "walk", requests_per_minute=1)
    await asyncio.to_thread(
        wait_until, lambda: card(product, key, "requests_per_minute"), 10, "the limit is in force"
    )
    assert (await client.ask(key, FORWARDED["completions"], path="completions")).status == 200
    for path, body in FORWARDED.items():
        call = await client.ask(key, body, path=path)
        assert (call.status, call.code) == (429, "rate_limit_exceeded"), (path, call.body)
    assert (await client.get("/v1/models", key)).status_code == 200
    assert (await client.get("/v1/key", key)).status_code == 200
    for path in ("tokenize", "rerank", "score", "nonsense"):
        assert (await client.ask(key, {"model": "witness", "input": "x"}, path=path)).status == 404


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
async def test_fifty_at_once_over_four_gateways(
    doomed: Product, witness: Witness, number: int
) -> None:
    """
    1,000 tokens left and fifty that may use all of them: one passes, each time; what it did not
    use lets in exactly as many of the next as fit, and one that could never fit is refused.
    """
    user = f"round{number}"
    key = (await asyncio.to_thread(capped, doomed, {user: ("interactive", 64)}))[user]
    await asyncio.to_thread(limit, doomed, user, tokens_per_day=1000)
    await asyncio.to_thread(
        wait_until, lambda: card(doomed, key, "tokens_per_day"), 10, "the limit is in force"
    )
    await asyncio.sleep(2)  # on every gateway
    witness.tell(first_delay_s=0.5, tokens=90)
    first = await at_once(doomed, key, user, 50, max_tokens=960)
    assert Counter(call.status for call in first) == {200: 1, 429: 49}
    await asyncio.to_thread(
        wait_until,
        lambda: 0 < books_say(doomed, user) == card(doomed, key, "tokens_per_day")["used"],
        10, "it is settled",
    )  # fmt: skip
    left = 1000 - books_say(doomed, user)
    refused = await ask_apart(doomed, key, f"{user}/never", max_tokens=50_000)
    assert refused.status == 400
    witness.tell(first_delay_s=1.5)
    next_ones = await at_once(doomed, key, f"{user}/next", 20, max_tokens=200)
    told = {json.loads(c.body)["error"]["quota"]["requested"] for c in next_ones if c.status == 429}
    # Each gateway learns by itself how many tokens a text has: what is reserved differs a little.
    passed = sum(call.status == 200 for call in next_ones)
    assert left // max(told) <= passed <= left // min(told), (left, told)
    assert all(int(c.headers["x-ratelimit-remaining-tokens"]) >= 0 for c in [*first, *next_ones])


async def test_sign_in_is_limited_however_many_try_at_once(product: Product) -> None:
    """
    Of fifty wrong passwords sent at once for one name at most five are looked at.
    """
    # From an address of its own: others sign in as well, and the address is limited too.
    link = httpx.AsyncHTTPTransport(
        local_address="127.0.0.77", limits=httpx.Limits(max_connections=60)
    )
    async with httpx.AsyncClient(base_url=product.url, timeout=60, transport=link) as browser:
        page = await browser.get("/accounts/login/")
        token = page.text.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
        form = {"login": "somebody", "password": "wrong", "csrfmiddlewaretoken": token}
        headers = {"referer": f"{product.url}/accounts/login/"}
        answers = await asyncio.gather(
            *(browser.post("/accounts/login/", data=form, headers=headers) for _ in range(50))
        )
    looked_at = [a for a in answers if "Too many" not in a.text and a.status_code != 429]
    assert len(looked_at) <= 5, Counter(a.status_code for a in answers)
