"""Which path goes where, and nothing else.

POST /v1/chat/completions …     to an engine, through the scheduler   gateway.arrival
GET  /v1/models /key /queue     answered here                         gateway.own
/v1/files* /v1/batches*         to the portal                         gateway.passthrough
/v1/* else                      404 in shape, never a redirect
/healthz /readyz                for supervisors and balancers
/metrics /internal/*            for this machine and whom the settings name
everything else                 to the portal
"""

from __future__ import annotations

import logging

from gateway import about, arrival, own, tasks
from gateway.client import Client
from gateway.core import fields
from gateway.core.fields import Kind
from gateway.errors import (
    ClientGone,
    GatewayError,
    MethodNotAllowed,
    NotFound,
    body_of,
    from_refused,
    headers_of,
)
from gateway.ledger.interface import Refused
from gateway.passthrough import Passthrough
from gateway.services import Services

log = logging.getLogger("fairway.app")

ABOUT = ("/healthz", "/readyz", "/metrics")
PORTAL_UNDER_V1 = ("/v1/files", "/v1/batches")


class Router:
    """Sends each request where it belongs."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._passthrough = Passthrough(services.config, services.upstream)

    def begin(self, client: Client) -> None:
        """Begin to answer a request; never raises."""
        kind = fields.ROUTES.get(client.path)
        if kind is None or not self._is_begun(client, kind):
            tasks.start(client.loop, self._serve(client, kind))

    def _is_begun(self, client: Client, kind: Kind) -> bool:
        """Set a request to an engine going, or refuse it, unless it has to wait for something."""
        try:
            _only(client, "POST")
            return arrival.serve_at_once(self.services, kind, client)
        except Exception as error:
            self._failed(client, kind, error)
            return True

    async def _serve(self, client: Client, kind: Kind | None) -> None:
        try:
            if kind is not None:
                await arrival.serve(self.services, kind, client)
            else:
                await self._not_for_engines(client)
        except Exception as error:
            self._failed(client, kind, error)

    def _failed(self, client: Client, kind: Kind | None, error: Exception) -> None:
        """Tell the client what is wrong, unless it has left."""
        if isinstance(error, ClientGone):
            return
        if isinstance(error, Refused):
            error = from_refused(error)
        elif not isinstance(error, GatewayError):
            log.error("request %s failed", client.request_id, exc_info=error)
            error = GatewayError("Something went wrong in the gateway.")
        self.services.metrics.rejected.labels(error.code).inc()
        if client.started:
            client.cut()
        else:
            body = body_of(error, messages_shape=kind in fields.MESSAGES_SHAPE)
            client.answer(error.status, headers_of(error), body)

    async def _not_for_engines(self, client: Client) -> None:
        path = client.path
        if path.startswith("/v1/") or path == "/v1":
            await self._under_v1(client, path)
        elif path in ABOUT or path.startswith("/internal/"):
            await about.answer(self.services, client, path)
        else:
            await self._passthrough.serve(client)

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
            raise NotFound(f"There is no {client.method} {path[:200]}.")


def _only(client: Client, method: str) -> None:
    if client.method != method and not (client.method == "HEAD" and method == "GET"):
        raise MethodNotAllowed(
            f"Use {method} for {client.path[:200]}.", headers=((b"allow", method.encode()),)
        )
