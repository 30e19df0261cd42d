"""/internal/hold: a measuring process asks for a replica and tells that it still lives.

POST   {"replica_id", "run", "why", "seconds"}   take or renew; answers what is read back
DELETE {"replica_id", "run"}                     give back
"""

from __future__ import annotations

import time
from typing import Any

import orjson

from gateway import errors
from gateway.authenticate import allows_live
from gateway.client import Client
from gateway.errors import BadRequest, Forbidden, MethodNotAllowed, Rejected
from gateway.fleet.holds import AlreadyHeld, Hold
from gateway.fleet.prober import Fleet
from gateway.services import Services

LONGEST_S = 6 * 3600.0
BODY_LIMIT = 4096


def refuse_while_measured(fleet: Fleet, pool: str) -> None:
    """Turn a newcomer away while every replica of the pool is being measured."""
    until = fleet.measured_until(pool)
    if until is not None:
        raise errors.measuring(until)


async def serve(services: Services, client: Client) -> None:
    """Serve one request of a measuring process."""
    if not allows_live(client.headers, services.config.secret_key):
        raise Forbidden("This needs a credential of the portal.")
    method = client.method
    if method not in ("POST", "DELETE"):
        raise MethodNotAllowed("Use POST or DELETE.", headers=((b"allow", b"POST, DELETE"),))
    asked = await _asked(client)
    try:
        replica_id, run = str(asked["replica_id"]), str(asked["run"])
        if method == "DELETE":
            await services.holds.give_back(replica_id, run)
        else:
            seconds = min(max(0.0, float(asked["seconds"])), LONGEST_S)
            hold = Hold(run, str(asked.get("why", ""))[:200], time.time() + seconds)
            await services.holds.take(replica_id, hold)
    except (KeyError, TypeError, ValueError):
        raise BadRequest("Send replica_id, run and seconds.") from None
    except AlreadyHeld as held:
        raise Rejected(f"It is held already: {held}", code="already_held") from None
    replica = services.fleet.replica(replica_id)
    state = None if replica is None else replica.state(services.fleet.now_s())
    body = orjson.dumps({"replica_id": replica_id, "state": state})
    client.answer(200, [(b"content-type", b"application/json")], body)


async def _asked(client: Client) -> dict[str, Any]:
    try:
        asked = orjson.loads(await client.body(BODY_LIMIT))
    except ValueError:
        raise BadRequest("The body is not JSON.") from None
    if not isinstance(asked, dict):
        raise BadRequest("Send an object.")
    return asked
