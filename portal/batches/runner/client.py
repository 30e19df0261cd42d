"""Speaks to the gateway: sends one line, asks how many of a person's lines run and wait.

aiohttp, not httpx: sending thousands of lines, its client costs a tenth of the CPU, and its pool
loses no places when a request is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field

import aiohttp
import orjson
from django.conf import settings

from portal.batches.runner.store import Work
from portal.batches.runner.verdict import Answer
from quotas.snapshots.credentials import Credential, sign

CREDENTIAL_S = 300.0
RENEW_BEFORE_S = 120.0
CONNECT_S = 5.0
# The gateway bounds waiting (its queue TTL) and running; this is for a gateway that hangs.
ANSWER_S = 8000.0
LIVE_S = 3.0
ANSWER_BYTES = 32 * 1024 * 1024


@dataclass(slots=True)
class Flow:
    """One person's batch work at the gateway."""

    in_flight: int = 0
    waiting: int = 0


@dataclass(slots=True)
class GatewayClient:
    """One connection pool to the gateway, and the credentials it takes from us."""

    session: aiohttp.ClientSession
    _signed: dict[tuple[str, str, str], tuple[str, float]] = field(default_factory=dict)

    @classmethod
    def open(cls) -> GatewayClient:
        """Open the pool; call it inside the event loop that will use it."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        return cls(aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False))

    async def close(self) -> None:
        """Close all connections; what was in flight is broken off."""
        await self.session.close()
        await asyncio.sleep(0.02)  # the loop closes the sockets in its next rounds

    async def send(self, work: Work, body: bytes) -> Answer:
        """Send one line and wait for its whole answer, however long it queues."""
        headers = {
            "Authorization": f"Bearer {self._credential('batch', work.key_digest, work.public_id)}",
            "Content-Type": "application/json",
        }
        try:
            async with self.session.post(
                settings.GATEWAY_URL + work.endpoint, data=body, headers=headers
            ) as response:
                answer = await _bounded(response)
                return Answer(
                    status=response.status,
                    body=answer,
                    request_id=response.headers.get("x-request-id", ""),
                    retry_after_s=_seconds(response.headers.get("Retry-After")),
                )
        except aiohttp.ClientConnectorError as error:
            return Answer(0, reached=False, trouble=str(error))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Answer(0, trouble=f"the connection broke: {type(error).__name__}")

    async def flows(self) -> dict[str, Flow] | None:
        """Return what the gateway holds of each person's batch work; None: it does not say."""
        headers = {"Authorization": f"Bearer {self._credential('live', '', '')}"}
        url = f"{settings.GATEWAY_URL}/internal/live"
        try:
            async with asyncio.timeout(LIVE_S), self.session.get(url, headers=headers) as response:
                if response.status != 200:
                    return None
                live = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError):
            return None
        flows: dict[str, Flow] = defaultdict(Flow)
        for ticket in live.get("queued", ()):
            if ticket["service_class"] == "batch":
                flows[ticket["user_id"]].waiting += 1
        for ticket in live.get("running", ()):
            if ticket["service_class"] == "batch":
                flows[ticket["user_id"]].in_flight += 1
        return flows

    def _credential(self, scope: str, key_digest: str, batch_id: str) -> str:
        name = (scope, key_digest, batch_id)
        now = time.time()
        text, end = self._signed.get(name, ("", 0.0))
        if end - now < RENEW_BEFORE_S:
            end = now + CREDENTIAL_S
            text = sign(settings.SECRET_KEY, Credential(scope, key_digest, end, batch_id))
            self._signed[name] = (text, end)
        return text


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """Read an answer, but never more than fits the memory of a worker."""
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > ANSWER_BYTES:
            raise aiohttp.ClientPayloadError("the answer is too large")
        pieces.append(piece)
    return b"".join(pieces)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def request_body(raw: bytes) -> bytes:
    """Return what of a line goes to the gateway."""
    body = orjson.loads(raw)["body"]
    body.pop("stream", None)
    body.pop("stream_options", None)
    return orjson.dumps(body)
