"""What the gateway answers by itself, without an engine and without a slot."""

from __future__ import annotations

from typing import Any

import orjson

from gateway import card
from gateway.authenticate import authenticate
from gateway.caller import Caller
from gateway.client import Client
from gateway.errors import NotFound
from gateway.live import standing_json
from gateway.services import Services
from quotas.snapshots.directory import Limits, PoolSnapshot

_JSON = [(b"content-type", b"application/json")]


async def _caller(services: Services, client: Client) -> Caller:
    return await authenticate(client.headers, services.directory, services.config.secret_key)


async def models(services: Services, client: Client, name: str = "") -> None:
    """GET /v1/models and /v1/models/{id}: what this key may use, aliases included."""
    caller = await _caller(services, client)
    allowed = caller.limits.allowed_models
    entries = [
        _model(services, pool, shown)
        for pool in services.directory.pools()
        for shown in (pool.name, *pool.aliases)
        if allowed is None or pool.name in allowed or shown in allowed
    ]
    if not name:
        _json(client, {"object": "list", "data": entries})
        return
    for entry in entries:
        if entry["id"] == name:
            _json(client, entry)
            return
    raise NotFound(
        f"The model `{name}` does not exist, or this key may not use it.", code="model_not_found"
    )


def _model(services: Services, pool: PoolSnapshot, shown: str) -> dict[str, Any]:
    states = [live.state for live in services.fleet.engines() if live.pool == pool.name]
    entry: dict[str, Any] = {
        "id": shown,
        "object": "model",
        "created": 0,
        "owned_by": "fairway",
        "ready": any(state in ("up", "busy") for state in states),
    }
    if shown != pool.name:
        entry["root"] = pool.name
    if pool.context is not None:
        entry["max_model_len"] = pool.context
    if pool.reservations:
        entry["reserved"] = [
            {
                "group": one.group_name,
                "slots": one.slots,
                "starts_at": one.starts_at,
                "ends_at": one.ends_at,
                "is_running": one.is_running,
            }
            for one in pool.reservations
        ]
    return entry


async def key(services: Services, client: Client) -> None:
    """GET /v1/key: the caller's own key, its limits, and what it holds now."""
    caller = await _caller(services, client)
    view = await services.ledger.glance()
    mine = caller.key.key_id
    running = sum(holding.weight for holding in view.running if holding.key_id == mine)
    queued = sum(1 for standing in view.queued if standing.key_id == mine)
    _json(
        client,
        {
            "object": "key",
            "id": mine,
            "name": caller.key.name,
            "masked": caller.key.masked,
            "service_class": caller.key.service_class,
            "user": caller.key.user_name,
            "expires_at": caller.key.expires_at,
            "in_flight": running,
            "queued": queued,
            "limits": _limits(caller.limits),
            "quotas": await card.of_caller(services, caller, view),
        },
    )


def _limits(limits: Limits) -> dict[str, Any]:
    return {
        "key": limits.key,
        "person": limits.person,
        "group": limits.group,
        "allowed_models": limits.allowed_models,
    }


async def queue(services: Services, client: Client) -> None:
    """GET /v1/queue: where the caller's own waiting requests stand, and why they wait."""
    caller = await _caller(services, client)
    view = await services.lookout.view()
    mine = [standing_json(s) for s in view.queued if s.user_id == caller.user_id]
    _json(client, {"object": "list", "data": mine, "waiting_in_all": len(view.queued)})


def _json(client: Client, value: Any) -> None:
    client.answer(200, _JSON, orjson.dumps(value))
