"""The quota card: every limit that is counted, what is used of it, what is left, and its reset.

One source for `GET /v1/key` and for the portal's pages: the ledger that also decides at the gate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.authenticate import allows_live
from gateway.caller import Caller
from gateway.charges import COUNTED, Counted
from gateway.client import Client
from gateway.core.types import Holding, LedgerView, ServiceClass, Standing
from gateway.errors import BadRequest, Forbidden, Unavailable
from gateway.ledger.interface import Refused
from gateway.quota import line
from gateway.services import Services
from quotas.snapshots.directory import Limits

LONGEST_LIST = 500
BODY_LIMIT = 256 * 1024
ANSWER_S = 2.0


async def of_caller(services: Services, caller: Caller, view: LedgerView) -> list[dict[str, Any]]:
    """Return the caller's whole card, both classes."""
    lines: list[dict[str, Any]] = []
    wanted: list[Counted] = []
    for service_class in ServiceClass:
        limits = caller.key.limits(service_class)
        lines += _held(limits, service_class, caller, view)
        wanted += await services.quota.counted(limits, service_class.value, caller.identities)
    return [*lines, *await _lines(services, wanted)]


async def _lines(services: Services, wanted: Sequence[Counted]) -> list[dict[str, Any]]:
    floors = await services.quota.floors(wanted)
    looks = tuple(limit.charge(0, floors.get(limit.in_books, 0)) for limit in wanted)
    try:
        async with asyncio.timeout(ANSWER_S):
            states = await services.ledger.quota(looks)
    except (TimeoutError, Refused):
        raise Unavailable(
            "The scheduler is away for a moment; try again.",
            code="scheduler_unavailable",
            retry_after_s=2,
        ) from None
    now_s = time.time()
    return [line(limit, state, now_s) for limit, state in zip(wanted, states, strict=True)]


def _held(
    limits: Limits, service_class: ServiceClass, caller: Caller, view: LedgerView
) -> list[dict[str, Any]]:
    """Return the caps: what runs and waits now, of the key and of the person."""
    lines = []
    own = {"key": ("key_id", caller.key.key_id), "person": ("user_id", caller.user_id)}
    tickets: dict[str, tuple[Holding | Standing, ...]] = {
        "in_flight": view.running,
        "queued": view.queued,
    }
    for per, (field, identity) in own.items():
        for name, found in tickets.items():
            limit = getattr(limits, per).get(name)
            if limit is None:
                continue
            used = sum(
                ticket.weight if isinstance(ticket, Holding) else 1
                for ticket in found
                if ticket.service_class is service_class and getattr(ticket, field) == identity
            )
            lines.append(
                {
                    "name": name,
                    "per": per,
                    "level": limits.levels.get(f"{per}.{name}", "default"),
                    "service_class": service_class.value,
                    "limit": limit,
                    "unit": "requests",
                    "window": None,
                    "used": used,
                    "remaining": max(0, limit - used),
                    "resets_at": None,  # free when one ends
                }
            )
    return lines


async def serve(services: Services, client: Client) -> None:
    """POST /internal/quota: where limits stand that the portal names, in its order."""
    if not allows_live(client.headers, services.config.secret_key):
        raise Forbidden("This needs a credential of the portal.")
    try:
        asked = orjson.loads(await client.body(BODY_LIMIT))["limits"]
        wanted = [limit for one in asked[:LONGEST_LIST] for limit in await _named(services, one)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadRequest("Send the limits you ask for.") from None
    body = orjson.dumps({"at": time.time(), "quotas": await _lines(services, wanted)})
    client.answer(200, [(b"content-type", b"application/json")], body)


async def _named(services: Services, one: dict[str, Any]) -> tuple[Counted, ...]:
    """Return the limit that the portal names: {name, per, level, service_class, identity, limit}.

    The books say who has which limit; windows, counters and what is used are the gateway's.
    """
    name, per = str(one["name"]), str(one["per"])
    if name not in COUNTED or per not in ("key", "person", "group"):
        raise ValueError(name)
    values = {name: int(one["limit"])}
    limits = Limits(
        key=values if per == "key" else {},
        person=values if per == "person" else {},
        group=values if per == "group" else {},
        levels={f"{per}.{name}": str(one.get("level", ""))},
    )
    service_class = ServiceClass(one["service_class"]).value
    return await services.quota.counted(limits, service_class, {per: str(one["identity"])})
