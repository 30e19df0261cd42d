"""Many people at once: keys with caps in one start of Django, and clients of a chosen gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.rig.chat import Call, Caller, chat
from tests.rig.product import Product

MANY = 100_000

# The caps bind; the bounds of the queues are lifted, or two hundred at once would be refused.
ISSUE = """
import json
from django.db import transaction
from quotas.models import Pool
from quotas.services import engines, keys, limits, people
found = {{}}
with transaction.atomic():
    for pool in Pool.objects.all():
        engines.update_pool(pool=pool, queue_bound_interactive={many}, queue_bound_batch={many})
    for name, (kind, cap) in {people}.items():
        user = people.ensure_user(username=name)
        for per in ("key", "person"):
            for limit, value in (("in_flight", cap), ("queued", {many})):
                if value:
                    limits.set_limit(
                        holder=limits.Holder(user=user), service_class=kind, name=limit,
                        per=per, value=value,
                    )
        found[name] = keys.issue(owner=user, name=f"{{name}} {{kind}}", service_class=kind).secret
print(json.dumps(found))
"""


def capped(product: Product, people: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Return new keys by their owners, given class and cap; cap 0 keeps the default.

    The owner's cap is the key's, and no bound of a queue is in the way.
    """
    script = ISSUE.format(people=dict(people), many=MANY)
    found: dict[str, str] = json.loads(
        product.manage("shell", "--no-imports", "-c", script, timeout_s=150).splitlines()[-1]
    )
    return found


async def ask_apart(product: Product, key: str, mark: str, model: str = "witness") -> Call:
    """Send one chat over a connection of its own, so that any gateway may take it."""
    async with Caller(product.url, timeout_s=110) as client:
        return await client.ask(key, chat(model, mark))


def _inode_of(server_port: int, client_port: int) -> str:
    """Return the inode of the server's end of a connection over the loopback address."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        ours, theirs = (int(end.partition(":")[2], 16) for end in parts[1:3])
        if (ours, theirs) == (server_port, client_port):
            return parts[9]
    return ""


def _holder(inode: str, pids: list[int]) -> int:
    for pid in pids:
        for link in Path("/proc", str(pid), "fd").iterdir():
            with suppress(OSError):
                if str(link.readlink()) == f"socket:[{inode}]":
                    return pid
    return 0


async def caller_of(product: Product, pid: int) -> Caller:
    """Return a client whose connection is held by the gateway with this pid.

    It stays there as long as the client sends one request at a time.
    """
    gateways = product.parts()["gateway"]
    for _ in range(400):
        client = Caller(product.url, timeout_s=110)
        answer = await client.get("/healthz")
        address = answer.extensions["network_stream"].get_extra_info("client_addr")
        if _holder(_inode_of(product.port, address[1]), gateways) == pid:
            return client
        await client.__aexit__()
        await asyncio.sleep(0)
    raise AssertionError(f"no connection reaches gateway {pid}")
