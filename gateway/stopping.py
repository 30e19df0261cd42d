"""/internal/stop: the portal ends a request for the person who owns it, or for an administrator.

POST {"request_id", "user_id"}   `user_id` is whose request it must be; null: an administrator asks

The request may live in another process than the one that is asked. So the word goes round by
Redis, and the answer is 202: asked, not done. Who wants to know looks at /internal/live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson
import redis.asyncio as redis
from redis.exceptions import RedisError

from gateway import tasks
from gateway.authenticate import allows_live
from gateway.client import Client
from gateway.core.types import Holding, Standing
from gateway.errors import BadRequest, Forbidden, MethodNotAllowed, NotFound, Unavailable

if TYPE_CHECKING:
    from gateway.services import Services

CHANNEL = "fairway:stop"
BODY_LIMIT = 4096
ANSWER_S = 2.0
AGAIN_S = 1.0

log = logging.getLogger("fairway.stopping")


class Stops:
    """Hears which requests are to end; one that is missed is simply asked for again."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._task: asyncio.Task[None] | None = None
        self.on_stop: Callable[[str], None] = lambda request_id: None

    async def start(self) -> None:
        """Listen from now on."""
        self._task = asyncio.create_task(self._listen(), name="stops")

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            await tasks.end(self._task)
        await self._redis.aclose()

    async def ask(self, request_id: str) -> None:
        """Ask every gateway process to end a request."""
        async with asyncio.timeout(ANSWER_S):
            await self._redis.publish(CHANNEL, request_id)

    async def _listen(self) -> None:
        while True:
            try:
                async with self._redis.pubsub() as heard:
                    await heard.subscribe(CHANNEL)
                    async for message in heard.listen():
                        if message["type"] == "message":
                            self.on_stop(message["data"].decode("ascii", "replace"))
            except (RedisError, OSError):
                await asyncio.sleep(AGAIN_S)
            except Exception:
                log.exception("a request could not be stopped")


async def serve(services: Services, client: Client) -> None:
    """Serve one request of the portal."""
    if not allows_live(client.headers, services.config.secret_key):
        raise Forbidden("This needs a credential of the portal.")
    if client.method != "POST":
        raise MethodNotAllowed("Use POST.", headers=((b"allow", b"POST"),))
    try:
        asked = orjson.loads(await client.body(BODY_LIMIT))
        request_id, user_id = asked["request_id"], asked["user_id"]
    except (ValueError, KeyError, TypeError):
        raise BadRequest("Send request_id and user_id.") from None
    view = await services.ledger.glance()
    tickets: list[Holding | Standing] = [*view.running, *view.queued]
    owners = [ticket.user_id for ticket in tickets if ticket.ticket_id == request_id]
    # Behind an application key the flow is "owner/end user"; its owner may stop it too.
    if not any(user_id is None or owner.partition("/")[0] == user_id for owner in owners):
        raise NotFound("No such request waits or runs.")
    try:
        await services.stops.ask(request_id)
    except (RedisError, OSError, TimeoutError):
        raise Unavailable("Redis is away for a moment; try again.", retry_after_s=2) from None
    body = orjson.dumps({"request_id": request_id, "asked": True})
    client.answer(202, [(b"content-type", b"application/json")], body)
