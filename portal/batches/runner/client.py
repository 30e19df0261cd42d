"""Speaks to the gateway: sends one line, asks how many of a person's lines run and wait."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field

import orjson
from django.conf import settings

from portal.batches.runner.store import Work
from portal.batches.runner.verdict import Answer
from portal.batches.runner.wire import Broken, Pool, Unreachable
from quotas.snapshots.credentials import Credential, sign

CREDENTIAL_S = 300.0
RENEW_BEFORE_S = 120.0
# The gateway bounds waiting (its queue TTL) and running; this is for a gateway that hangs.
ANSWER_S = 8000.0
LIVE_S = 3.0


@dataclass(slots=True)
class Flow:
    """One person's batch work at the gateway."""

    in_flight: int = 0
    waiting: int = 0


@dataclass(slots=True)
class GatewayClient:
    """The connections to the gateway, and the credentials it takes from us."""

    pool: Pool
    _heads: dict[tuple[str, str, str], tuple[bytes, float]] = field(default_factory=dict)

    @classmethod
    def open(cls) -> GatewayClient:
        """Open the pool; call it inside the event loop that will use it."""
        return cls(Pool(settings.GATEWAY_URL))

    def close(self) -> None:
        """Close all connections; what was in flight is broken off."""
        self.pool.close()

    def give_up(self) -> None:
        """Break off what a gateway that hangs will not answer any more."""
        self.pool.give_up(ANSWER_S)

    async def send(self, work: Work, body: bytes) -> Answer:
        """Send one line and wait for its whole answer, however long it queues."""
        try:
            reply = await self.pool.ask(self._line_head(work), body)
        except Unreachable as error:
            return Answer(0, reached=False, trouble=str(error))
        except Broken as error:
            return Answer(0, trouble=str(error))
        return Answer(
            status=reply.status,
            body=reply.body,
            request_id=reply.headers.get(b"x-request-id", b"").decode("latin-1"),
            retry_after_s=_seconds(reply.headers.get(b"retry-after")),
        )

    async def flows(self) -> dict[str, Flow] | None:
        """Return what the gateway holds of each person's batch work; None: it does not say."""
        bearer = sign(settings.SECRET_KEY, Credential("live", "", time.time() + CREDENTIAL_S))
        head = self.pool.head("GET", "/internal/live", {"Authorization": f"Bearer {bearer}"})
        try:
            async with asyncio.timeout(LIVE_S):
                reply = await self.pool.ask(head)
            if reply.status != 200:
                return None
            live = orjson.loads(reply.body)
        except (OSError, TimeoutError, orjson.JSONDecodeError):
            return None
        flows: dict[str, Flow] = defaultdict(Flow)
        for ticket in live.get("queued", ()):
            if ticket["service_class"] == "batch":
                flows[ticket["user_id"]].waiting += 1
        for ticket in live.get("running", ()):
            if ticket["service_class"] == "batch":
                flows[ticket["user_id"]].in_flight += 1
        return flows

    def _line_head(self, work: Work) -> bytes:
        """Return the head of a line's request; a job's lines share one until it is renewed."""
        name = (work.endpoint, work.key_digest, work.public_id)
        now = time.time()
        head, end = self._heads.get(name, (b"", 0.0))
        if end - now < RENEW_BEFORE_S:
            self._heads = {n: kept for n, kept in self._heads.items() if kept[1] > now}
            end = now + CREDENTIAL_S
            bearer = sign(
                settings.SECRET_KEY, Credential("batch", work.key_digest, end, work.public_id)
            )
            headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
            head = self.pool.head("POST", work.endpoint, headers)
            self._heads[name] = (head, end)
        return head


def _seconds(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
