"""Keys: dead ones stay dead everywhere, and no secret is ever readable again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from portal import stores
from portal.stores import postgres
from quotas.snapshots import keyformat
from tests.rig import checkers
from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product, descendants
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault

END_ALL = """
import datetime as dt
from quotas.models import ApiKey, User
from quotas.services import keys, people
key = {key.owner.username: key for key in ApiKey.objects.select_related("owner")}
keys.revoke(key=key["revoked"])
keys.disable(key=key["disabled"])
people.set_active(user=key["owner-out"].owner, is_active=False)
keys.extend(key=key["expired"], lifetime=dt.timedelta(seconds=1))
"""
ENDED = ("revoked", "disabled", "owner-out", "expired")


async def test_a_dead_key_starts_nothing_after_five_seconds(
    product: Product, client: Caller, witness: Witness
) -> None:
    """Keys in steady use are refused within five seconds of their end, whatever ended them."""
    secrets = await asyncio.to_thread(product.keys, **dict.fromkeys(ENDED, "interactive"))
    calls: list[Call] = []
    ended = asyncio.Event()

    async def use(user: str) -> None:
        while not ended.is_set():
            body = chat("witness", f"{user}/{time.monotonic_ns()}")
            calls.append(await client.ask(secrets[user], body))
            await asyncio.sleep(0.03)

    using = [asyncio.create_task(use(user)) for user in ENDED]
    await asyncio.sleep(0.5)
    await asyncio.to_thread(product.manage, "shell", "--no-imports", "-c", END_ALL)
    dead_s = time.monotonic() + 1.0  # one of them lives a second longer
    await asyncio.sleep(dead_s - time.monotonic() + 5.5)
    ended.set()
    await asyncio.gather(*using)
    for user in ENDED:
        mine = [call for call in calls if call.mark.startswith(f"{user}/")]
        assert mine[0].whole, user
        assert {call.status for call in mine} == {200, 401}, user
        assert {call.status for call in mine if call.invoked_s > dead_s + 5} == {401}, user
        assert checkers.refused_after(witness.records(), user, dead_s) == []


DEAD = """
import datetime as dt, json
from quotas.models import ApiKey, User
from quotas.services import keys, people
found = {}
for state in ("live", "disabled", "expired", "owner out", "revoked"):
    for kind in ("ordinary", "application", "administrator"):
        name = f"{state} {kind}".replace(" ", "-")
        owner = people.ensure_user(username=name)
        if kind == "administrator":
            User.objects.filter(pk=owner.pk).update(is_staff=True, is_superuser=True)
        made = keys.issue(
            owner=owner, name=name, service_class="interactive",
            kind="application" if kind == "application" else "ordinary",
            end_user_header="X-User" if kind == "application" else "",
            lifetime=dt.timedelta(seconds=1) if state == "expired" else None,
        )
        if state == "disabled":
            keys.disable(key=made.key)
        elif state == "revoked":
            keys.revoke(key=made.key)
        elif state == "owner out":
            people.set_active(user=owner, is_active=False)
        found[f"{state}/{kind}"] = made.secret
print(json.dumps(found))
"""


async def test_no_kind_of_key_outlives_its_end(product: Product, client: Caller) -> None:
    """Disabled, expired, revoked, owner locked out: 401 for every kind of key and of owner."""
    text = await asyncio.to_thread(product.manage, "shell", "--no-imports", "-c", DEAD)
    await asyncio.sleep(2)  # the directory is read each second
    for name, secret in json.loads(text.splitlines()[-1]).items():
        answer = await client.get("/v1/models", secret)
        assert answer.status_code == (200 if name.startswith("live") else 401), name


@pytest.mark.parametrize(
    "spoil",
    [
        lambda secret: secret[:-1],
        lambda secret: secret + "0",
        lambda secret: secret[:-1] + ("0" if secret[-1] != "0" else "1"),
        lambda secret: secret.replace("fw_int_", "fw_bat_"),
        lambda secret: secret.swapcase(),
        lambda secret: secret + "é",
        lambda secret: "",
        lambda secret: "x" * 100_000,
        lambda secret: keyformat.generate("interactive"),
    ],
    ids=["short", "long", "checksum", "kind", "case", "unicode", "empty", "huge", "unknown"],
)
async def test_a_wrong_key_is_refused(
    product: Product, keys: dict[str, str], spoil: object
) -> None:
    """Anything but the key itself is refused in the known shape."""
    secret = spoil(keys["dora"])  # type: ignore[operator]
    async with httpx.AsyncClient(verify=False) as plain:
        answer = await plain.post(
            f"{product.url}/v1/chat/completions",
            json=chat("witness", "wrong key"),
            headers=[(b"Authorization", b" ".join([b"Bearer", secret.encode()]).strip())],
        )
    assert answer.status_code in (400, 401, 431), answer.text
    if answer.status_code == 401:
        assert answer.json()["error"]["code"] in {"invalid_api_key", "missing_api_key"}


def dump(product: Product) -> str:
    """Return the whole database as text."""
    done = subprocess.run(
        [postgres.binaries() / "pg_dump", stores.postgres_url(product.data_dir)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def redis_dump(product: Product) -> str:
    """Return every key and value of Redis as text."""
    found = []
    with product.redis() as link:
        for name in link.scan_iter(count=1000):
            found += [repr(name), repr(link.dump(name))]
            if link.type(name) == b"hash":
                found.append(repr(link.hgetall(name)))
            elif link.type(name) == b"stream":
                found.append(repr(link.xrange(name)))
    return "\n".join(found)


def process_texts(product: Product) -> str:
    """Return arguments and environment of every process of the product."""
    assert product.process is not None
    pids = [product.process.pid, *(one.pid for one in descendants(product.process.pid))]
    found = []
    for path in (Path(f"/proc/{pid}/{part}") for pid in pids for part in ("environ", "cmdline")):
        with suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return "\n".join(found)


ROTATE = """
from quotas.models import ApiKey
from quotas.services import keys
key = keys.rotate(key=ApiKey.objects.get(owner__username="keeper")).key
keys.revoke(key=keys.rename(key=key, name="renamed"))
"""


ENGINE_KEY = "sk-engine-0123456789abcdefghij"
SHOW_ENGINE = """
from quotas.models import Replica
from quotas.services import engines
engines.update(replica=Replica.objects.get(url={url!r}), api_key={key!r})
"""


@pytest.fixture
def engine_key(product: Product, witness: Witness) -> Iterator[str]:
    """Let the engine ask for a key of its own that the product knows; other tests find neither."""

    def show(key: str) -> None:
        command = SHOW_ENGINE.format(url=witness.url, key=key)
        product.manage("shell", "--no-imports", "-c", command)

    show(ENGINE_KEY)
    time.sleep(2)  # the directory is read each second
    witness.tell(api_key=ENGINE_KEY)
    yield ENGINE_KEY
    witness.tell(api_key="")
    show("")


async def test_no_secret_is_readable_anywhere(
    product: Product, client: Caller, witness: Witness, engine_key: str
) -> None:
    """
    After using, mistyping, misplacing, rotating and revoking a key its secret is in no dump and
    no process, nor in any log, although every program tells all it has to tell; and neither is
    the key that the engine asks for.
    """
    assert product.settings["LOG_LEVEL"] == "DEBUG"
    secret = await asyncio.to_thread(product.key, "keeper")
    assert (await client.ask(secret, chat("witness", "keeper/1"))).whole
    wrong = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    assert (await client.ask(wrong, chat("witness", "keeper/2"))).status == 401
    odd = httpx.AsyncClient(base_url=product.url, verify=False, auth=("user", secret))
    async with odd:
        await odd.get("/v1/models")  # as a password, which is no way to send it
        await odd.get("/v1/models", params={"api_key": secret})
        await odd.get("/status/", headers={"Cookie": f"key={secret}"})
        await odd.post("/v1/chat/completions", content=json.dumps({"model": secret}))
        await odd.post("/v1/files", headers={"Authorization": f"Bearer {secret}"})
        await odd.get("/api/v1/keys", headers={"Authorization": f"Bearer {secret}"})
    await asyncio.to_thread(product.manage, "shell", "--no-imports", "-c", ROTATE)
    await asyncio.sleep(1)
    logs = {str(path): path.read_text(errors="replace")
            for path in product.folder.rglob("*.log")}  # fmt: skip
    texts = logs | {
        "database": dump(product),
        "redis": redis_dump(product),
        "engine": witness.log.read_text(),
        "processes": process_texts(product),
    }
    assert checkers.secret_free(secret, texts) == []
    # The engine's own key was in use all the while; the engine alone may know it.
    del texts["engine"]
    assert checkers.secret_free(engine_key, texts) == []
