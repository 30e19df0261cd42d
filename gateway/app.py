"""The gateway as one bare ASGI callable: which path goes where, and nothing else.

POST /v1/chat/completions …     to an engine, through the scheduler   gateway.request
GET  /v1/models /key /queue     answered here                         gateway.own
/v1/files* /v1/batches*         to the portal                         gateway.passthrough
/v1/* else                      404 in shape, never a redirect
/healthz /readyz                for supervisors and balancers
/metrics /internal/*            for this machine and whom the settings name
everything else                 to the portal
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable

from gateway import about, own, request
from gateway.client import Client, Receive, Scope, Send
from gateway.core import fields
from gateway.errors import (
    ClientGone,
    GatewayError,
    MethodNotAllowed,
    NotFound,
    body_of,
    headers_of,
)
from gateway.passthrough import Passthrough
from gateway.services import Services

log = logging.getLogger("fairway.app")

Lifespan = Callable[[], contextlib.AbstractAsyncContextManager[Services]]
ABOUT = ("/healthz", "/readyz", "/metrics")
PORTAL_UNDER_V1 = ("/v1/files", "/v1/batches")


class Router:
    """Sends each request where it belongs."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._passthrough = Passthrough(services.config, services.upstream)

    async def serve(self, client: Client) -> None:
        """Answer one request, whatever comes."""
        path: str = client.scope["path"]
        kind = fields.ROUTES.get(path)
        try:
            if kind is not None:
                _only(client, "POST")
                await request.serve(self.services, kind, path, client)
            elif path.startswith("/v1/") or path == "/v1":
                await self._under_v1(client, path)
            elif path in ABOUT or path.startswith("/internal/"):
                await about.answer(self.services, client, path)
            else:
                await self._passthrough.serve(client)
        except ClientGone:
            pass
        except GatewayError as error:
            self.services.metrics.rejected.labels(error.code).inc()
            if not client.started and not client.gone:
                body = body_of(error, messages_shape=kind in fields.MESSAGES_SHAPE)
                await client.answer(error.status, headers_of(error), body)
        finally:
            client.close()

    async def _under_v1(self, client: Client, path: str) -> None:
        if any(path == root or path.startswith(root + "/") for root in PORTAL_UNDER_V1):
            await self._passthrough.serve(client)
            return
        name = path.removeprefix("/v1/models/") if path.startswith("/v1/models/") else ""
        if path == "/v1/models" or (name and not name.endswith("/")):
            _only(client, "GET")
            await own.models(self.services, client, name)
        elif path == "/v1/key":
            _only(client, "GET")
            await own.key(self.services, client)
        elif path == "/v1/queue":
            _only(client, "GET")
            await own.queue(self.services, client)
        else:
            raise NotFound(f"There is no {client.scope['method']} {path[:200]}.")


class App:
    """The ASGI application of one gateway process."""

    def __init__(self, lifespan: Lifespan) -> None:
        self._lifespan = lifespan
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's worth of ASGI."""
        if scope["type"] == "http" and self._router is not None:
            await self._router.serve(Client(scope, receive, send, new_id()))
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def drain(self) -> None:
        """Take nothing new; callable from a signal handler."""
        if self._router is not None:
            self._router.services.drain()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self._lifespan() as services:
                self._router = Router(services)
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            log.exception("the gateway cannot run")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


def new_id() -> str:
    """Return a request id, unique for ever."""
    return f"req_{os.urandom(12).hex()}"


def _only(client: Client, method: str) -> None:
    asked = client.scope["method"]
    if asked != method and not (asked == "HEAD" and method == "GET"):
        raise MethodNotAllowed(
            f"Use {method} for {client.scope['path'][:200]}.",
            headers=((b"allow", method.encode()),),
        )
