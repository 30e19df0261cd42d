"""Reads who waits and who runs straight from Redis, past the ledger's script.

A call of the script would move ledger time and wake the queue; a look must change nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import redis

from gateway.ledger.redis import KEYS
from tests.rig.product import Product

GATEWAY = re.compile(rf"^{re.escape(KEYS)}g:.*?(\d+)-[0-9a-f]+$")


@dataclass(frozen=True)
class Entry:
    """One ticket in the ledger."""

    pid: int  # of the gateway it belongs to
    ticket: str
    key_id: str
    replica: str  # empty while it waits

    @property
    def held(self) -> bool:
        """Answer whether it has been given a slot."""
        return bool(self.replica)


def entries_of(link: redis.Redis) -> list[Entry]:
    """Return every ticket of the ledger in this Redis."""
    found = []
    for name in link.scan_iter(match=f"{KEYS}g:*", count=1000):
        owner = GATEWAY.match(name.decode())
        assert owner, name
        for ticket, line in link.hgetall(name).items():
            head, _, rest = line.decode().partition("\r")
            found.append(
                Entry(int(owner[1]), ticket.decode(), rest.split("\t")[0], head.split("\t")[0])
            )
    return found


def entries(product: Product) -> list[Entry]:
    """Return every ticket of the ledger of a product."""
    with product.redis() as link:
        return entries_of(link)
