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
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable

import orjson

from gateway import own
from gateway.authenticate import allows_live
from gateway.client import Client, Receive, Scope, Send
from gateway.core import fields
from gateway.core.headers import FORWARDED, client_address
from gateway.errors import (
    BadRequest,
    ClientGone,
    Forbidden,
    GatewayError,
    MethodNotAllowed,
    NotFound,
    body_of,
    headers_of,
)
from gateway.live import live
from gateway.passthrough import Passthrough
from gateway.request import Request, new_id
from gateway.services import Services

log = logging.getLogger("fairway.app")

Lifespan = Callable[[], contextlib.AbstractAsyncContextManager[Services]]
_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
_JSON = [(b"content-type", b"application/json")]
PORTAL_UNDER_V1 = ("/v1/files", "/v1/batches")


class App:
    """The ASGI application of one gateway process."""

    def __init__(self, lifespan: Lifespan) -> None:
        self._lifespan = lifespan
        self._services: Services | None = None
        self._passthrough: Passthrough | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's worth of ASGI."""
        if scope["type"] == "http":
            client = Client(scope, receive, send, new_id())
            await self._http(client)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def drain(self) -> None:
        """Take nothing new; callable from a signal handler."""
        if self._services is not None:
            self._services.drain()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Services]:
        """Run the services for as long as the block lasts."""
        async with self._lifespan() as services:
            self._services = services
            self._passthrough = Passthrough(services.config, services.upstream)
            yield services

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except Exception as error:
            log.exception("the gateway cannot run")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, client: Client) -> None:
        services = self._services
        assert services is not None
        assert self._passthrough is not None
        path: str = client.scope["path"]
        kind = fields.ROUTES.get(path)
        try:
            if kind is not None:
                _only(client, "POST")
                await Request(services, kind, path, client).run()
            elif path.startswith("/v1/") or path == "/v1":
                await self._under_v1(services, client, path)
            elif path in ("/healthz", "/readyz", "/metrics") or path.startswith("/internal/"):
                await self._about_us(services, client, path)
            else:
                await self._passthrough.serve(client)
        except ClientGone:
            pass
        except GatewayError as error:
            services.metrics.rejected.labels(error.code).inc()
            if not client.started:
                await client.answer(error.status, headers_of(error), body_of(error))
        finally:
            client.close()

    async def _under_v1(self, services: Services, client: Client, path: str) -> None:
        assert self._passthrough is not None  # noqa: S101
        if any(path == root or path.startswith(root + "/") for root in PORTAL_UNDER_V1):
            await self._passthrough.serve(client)
        elif path == "/v1/models":
            _only(client, "GET")
            await own.models(services, client)
        elif path.startswith("/v1/models/") and not path.endswith("/"):
            _only(client, "GET")
            await own.models(services, client, path.removeprefix("/v1/models/"))
        elif path == "/v1/key":
            _only(client, "GET")
            await own.key(services, client)
        elif path == "/v1/queue":
            _only(client, "GET")
            await own.queue(services, client)
        else:
            raise NotFound(f"There is no {client.scope['method']} {path[:200]}.")

    async def _about_us(self, services: Services, client: Client, path: str) -> None:
        if path == "/healthz":
            await client.answer(200, _TEXT, b"ok\n")
        elif path == "/readyz":
            await _ready(services, client)
        elif path == "/metrics":
            _only_near(services, client, services.config.metrics_allow)
            _observe(services)
            await client.answer(200, _TEXT, services.metrics.page())
        elif path == "/internal/live":
            if not allows_live(client.headers, services.config.secret_key):
                raise Forbidden("This needs a credential of the portal.")
            await client.answer(200, _JSON, await live(services))
        elif path == "/internal/advance" and services.config.test_clock:
            _only_near(services, client, frozenset())
            await _advance(services, client)
        else:
            raise NotFound(f"There is no {path[:200]}.")


def _only(client: Client, method: str) -> None:
    asked = client.scope["method"]
    if asked != method and not (asked == "HEAD" and method == "GET"):
        raise MethodNotAllowed(
            f"Use {method} for {client.scope['path'][:200]}.",
            headers=((b"allow", method.encode()),),
        )


def _only_near(services: Services, client: Client, allowed: frozenset[str]) -> None:
    """Let in this machine and the listed addresses or networks; the rest sees a 404."""
    peer = (client.scope.get("client") or ("", 0))[0]
    trusted = services.config.trusted_proxies
    address = client_address(client.headers, peer, trusted)
    is_passed_on = any(name in FORWARDED for name, _ in client.headers)
    if _is_loopback(address) and (not is_passed_on or peer in trusted):
        return
    with contextlib.suppress(ValueError):
        ip = ipaddress.ip_address(address)
        if any(ip in ipaddress.ip_network(net, strict=False) for net in allowed):
            return
    raise NotFound(f"There is no {client.scope['path'][:200]}.")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == ""  # a unix socket


def _observe(services: Services) -> None:
    metrics = services.metrics
    metrics.live.set(len(services.live))
    metrics.buffered.set(services.buffers.held)
    metrics.outbox.set(services.outbox.waiting)
    metrics.directory_age.set(min(services.directory.age_s, 1e6))


async def _ready(services: Services, client: Client) -> None:
    """Ready = keys can be checked, the ledger starts tickets, and nobody told us to stop."""
    directory = services.directory.is_known
    try:
        ledger = (await services.ledger.view()).open
    except Exception:  # whatever keeps the ledger from answering, it is not ready
        ledger = False
    parts = {"directory": directory, "ledger": ledger, "serving": not services.draining}
    status = 200 if all(parts.values()) else 503
    headers = list(_JSON) if status == 200 else [*_JSON, (b"retry-after", b"2")]
    await client.answer(status, headers, orjson.dumps({"ready": status == 200, **parts}))


async def _advance(services: Services, client: Client) -> None:
    """POST /internal/advance {"ms": n}: age everything; only with the test switch."""
    _only(client, "POST")
    try:
        ms = orjson.loads(await client.body(1024))["ms"]
        services.ledger.advance(int(ms))
    except (ValueError, KeyError, TypeError):
        raise BadRequest('Send {"ms": n}.') from None
    await client.answer(200, _JSON, orjson.dumps({"advanced_ms": int(ms)}))
