"""What supervisors, Prometheus and our own portal ask the gateway about itself."""

from __future__ import annotations

import contextlib
import ipaddress

import orjson

from gateway import card, holding, stopping
from gateway.authenticate import allows_live
from gateway.client import Client
from gateway.core.headers import FORWARDED, client_address
from gateway.errors import BadRequest, Forbidden, NotFound
from gateway.live import live
from gateway.services import Services

_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
_PROMETHEUS = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_JSON = [(b"content-type", b"application/json")]


async def answer(services: Services, client: Client, path: str) -> None:
    """Answer /healthz, /readyz, /metrics and /internal/*."""
    if path == "/healthz":
        client.answer(200, _TEXT, b"ok\n")
    elif path == "/readyz":
        await _ready(services, client)
    elif path == "/metrics":
        _only_near(services, client, services.config.metrics_allow)
        services.observe()
        client.answer(200, _PROMETHEUS, services.metrics.page())
    elif path == "/internal/live":
        if not allows_live(client.headers, services.config.secret_key):
            raise Forbidden("This needs a credential of the portal.")
        status, picture = await live(services)
        headers = _JSON if status == 200 else [*_JSON, (b"retry-after", b"2")]
        client.answer(status, headers, picture)
    elif path == "/internal/quota":
        await card.serve(services, client)
    elif path == "/internal/hold":
        await holding.serve(services, client)
    elif path == "/internal/stop":
        await stopping.serve(services, client)
    elif path == "/internal/advance" and services.config.test_clock:
        _only_near(services, client, frozenset())
        await _advance(services, client)
    else:
        raise NotFound(f"There is no {path[:200]}.")


def _only_near(services: Services, client: Client, allowed: frozenset[str]) -> None:
    """Let in this machine and the listed addresses or networks; the rest sees a 404."""
    peer = client.peer
    trusted = services.config.trusted_proxies
    address = client_address(client.headers, peer, trusted)
    is_passed_on = any(name in FORWARDED for name, _ in client.headers)
    if _is_loopback(address) and (not is_passed_on or peer in trusted):
        return
    with contextlib.suppress(ValueError):
        ip = ipaddress.ip_address(address)
        if any(ip in ipaddress.ip_network(net, strict=False) for net in allowed):
            return
    raise NotFound(f"There is no {client.path[:200]}.")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == ""  # a unix socket


async def _ready(services: Services, client: Client) -> None:
    """Ready = keys can be checked, the ledger starts tickets, and nobody told us to stop."""
    directory = services.directory.is_known
    try:
        ledger = (await services.ledger.glance()).open
    except Exception:  # whatever keeps the ledger from answering, it is not ready
        ledger = False
    parts = {"directory": directory, "ledger": ledger, "serving": not services.draining}
    status = 200 if all(parts.values()) else 503
    headers = list(_JSON) if status == 200 else [*_JSON, (b"retry-after", b"2")]
    client.answer(status, headers, orjson.dumps({"ready": status == 200, **parts}))


async def _advance(services: Services, client: Client) -> None:
    """POST /internal/advance {"ms": n}: age everything; only with the test switch."""
    try:
        ms = orjson.loads(await client.body(1024))["ms"]
        services.ledger.advance(int(ms))
    except (ValueError, KeyError, TypeError):
        raise BadRequest('Send {"ms": n}.') from None
    client.answer(200, _JSON, orjson.dumps({"advanced_ms": int(ms)}))
