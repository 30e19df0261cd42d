"""Counted limits over four gateways, the books and a Redis that forgets."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault
HEADER = "X-Front-User"


# Everything the tests of this file need from the books, in one start of Django. The caps are
# kept out of the way, but for the application key's own.
BOOKS = """
import json
from django.db import transaction
from quotas.models import ApiKey
from quotas.services import keys, limits, people
found = {{}}
with transaction.atomic():
    for name, of_key in {{"fifty": 64, "front": 2, "plain": 2}}.items():
        user = people.ensure_user(username=name)
        for per, most in (("key", of_key), ("person", 64)):
            for limit, value in (("in_flight", most), ("queued", 100)):
                limits.set_limit(
                    holder=limits.Holder(user=user), service_class="interactive", name=limit,
                    per=per, value=value,
                )
        header = {header!r} if name == "front" else ""
        found[name] = keys.issue(
            owner=user, name=name, service_class="interactive", end_user_header=header,
            kind=ApiKey.Kind.APPLICATION if header else ApiKey.Kind.ORDINARY,
        ).secret
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def keys(doomed: Product) -> dict[str, str]:
    """Return an ordinary key that may do much, an application key and a plain one."""
    text = doomed.manage("shell", "--no-imports", "-c", BOOKS.format(header=HEADER))
    found: dict[str, str] = json.loads(text.splitlines()[-1])
    return found


def card(product: Product, key: str, name: str) -> dict[str, Any]:
    """Return the line of a limit per person; {} while it does not bind yet."""
    answer = httpx.get(f"{product.url}/v1/key", headers={"authorization": f"Bearer {key}"})
    if answer.status_code != 200:
        return {}
    found = (
        line
        for line in answer.json()["quotas"]
        if (line["name"], line["per"], line["service_class"]) == (name, "person", "interactive")
    )
    return dict(next(found, {}))


async def ask_apart(product: Product, key: str, mark: str, **fields: Any) -> Call:
    """Send one chat over a connection of its own, so that either gateway may take it."""
    headers = fields.pop("headers", None)
    async with Caller(product.url) as client:
        return await client.ask(key, chat("witness", mark, **fields), headers=headers)


async def at_once(product: Product, key: str, mark: str, count: int, **fields: Any) -> list[Call]:
    return await asyncio.gather(
        *(ask_apart(product, key, f"{mark}/{n}", **fields) for n in range(count))
    )


def waiting(product: Product) -> int:
    """Return how many tickets are queued."""
    return len(product.live()["queued"])


def books_say(product: Product, user: str) -> int:
    """Return the tokens of a person as the books have them."""
    ((tokens,),) = product.sql(
        "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint FROM usage_event "
        "WHERE user_id = (SELECT id FROM quotas_user WHERE username = %s)", user,
    )  # fmt: skip
    return int(tokens)


async def test_a_limit_from_the_shell_binds_fifty_at_once(
    doomed: Product, witness: Witness, keys: dict[str, str]
) -> None:
    """
    In force within 5 s on all gateways; of fifty one passes, gate and books agree to the token,
    and a Redis that forgot everything is told again what was used.
    """
    key, set_s = keys["fifty"], time.monotonic()
    doomed.manage("setlimit", "--user", "fifty", "--class", "interactive",
                  "--tokens-per-day", "1000")  # fmt: skip
    wait_until(lambda: card(doomed, key, "tokens_per_day"), 5, "the limit is in force")
    assert time.monotonic() - set_s < 30  # most of it is the command's own start
    witness.tell(first_delay_s=0.5, tokens=90)

    calls = await at_once(doomed, key, "fifty", 50, max_tokens=960)

    assert Counter(call.status for call in calls) == {200: 1, 429: 49}
    assert {call.code for call in calls if call.status == 429} == {"insufficient_quota"}
    wait_until(lambda: books_say(doomed, "fifty") > 0, 10, "the request is in the books")
    used = books_say(doomed, "fifty")
    wait_until(lambda: card(doomed, key, "tokens_per_day")["used"] == used, 5, "they agree")

    doomed.redis().flushall()
    wait_until(lambda: card(doomed, key, "tokens_per_day").get("used") == used, 20, "counted again")
    wait_until(lambda: doomed.get("/readyz", timeout=2) == 200, 20, "open again")
    again = await at_once(doomed, key, "again", 20, max_tokens=800)
    assert Counter(call.status for call in again) == {200: 1, 429: 19}


async def test_people_behind_one_application_key_share_equally(
    doomed: Product, witness: Witness, keys: dict[str, str]
) -> None:
    """
    Who came with sixteen does not keep the other's eight waiting; each has rows of their own.
    """
    key, began_s = keys["front"], time.monotonic()
    ann, ben = ({"max_tokens": 16, "headers": {HEADER: who}} for who in ("ann", "ben"))
    witness.tell(first_delay_s=4.0)  # the first two hold the key's cap until all others wait

    many = asyncio.create_task(at_once(doomed, key, "ann", 16, **ann))
    await asyncio.to_thread(wait_until, lambda: waiting(doomed) == 14, 15, "ann's wait")
    few = asyncio.create_task(at_once(doomed, key, "ben", 8, **ben))
    await asyncio.to_thread(wait_until, lambda: waiting(doomed) >= 21, 15, "ben's wait too")
    witness.tell(first_delay_s=0.1)
    calls = [*await many, *await few]

    assert [call.code for call in calls if not call.whole] == []
    starts = [
        record.owner
        for record in sorted(
            (r for r in witness.records() if r.owner in ("ann", "ben") and r.arrived_s >= began_s),
            key=lambda r: r.arrived_s,
        )
    ]
    last_of_few = max(place for place, owner in enumerate(starts) if owner == "ben")
    assert last_of_few < 20, starts
    assert {doomed.usage(f"{who}/0")[0]["end_user"] for who in ("ann", "ben")} == {"ann", "ben"}


async def test_the_header_changes_nothing_on_an_ordinary_key(
    doomed: Product, keys: dict[str, str]
) -> None:
    """
    Nobody gets another flow, or somebody else's rows, by naming them.
    """
    call = await ask_apart(doomed, keys["plain"], "plain/1", headers={HEADER: "ann"})
    assert call.whole
    (row,) = doomed.usage("plain/1")
    assert row["end_user"] == ""
