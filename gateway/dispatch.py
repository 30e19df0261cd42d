"""Writes the HTTP request that a replica gets in place of the client's."""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Final

from gateway.caller import Leg
from gateway.config import Config
from gateway.core import fields
from gateway.core.fields import Kind, Orders
from gateway.core.headers import TO_ENGINE, Headers
from gateway.core.types import Grant, ServiceClass
from gateway.intake import Order
from gateway.services import Services
from gateway.upstream import target_at
from quotas.snapshots.sealed import opened

_STREAMS: Final = frozenset({Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES, Kind.MESSAGES})
PRIORITY_BASE_S = 1 << 32
# SGLang keeps a metric series for each priority it sees, so there are few of them.
SGLANG_LEVELS = 8
SGLANG_LEVEL_MS = 150_000
HANDICAP_MS = 600_000


def leg_of(services: Services, order: Order, replica_id: str) -> Leg | None:
    """Return an order's last leg, None where the replica was taken out of the books a moment ago.

    It is made once for each edition of the books.
    """
    legs, directory = order.way.legs, services.directory
    found = legs.get(replica_id)
    if found is None or found.edition is not directory.edition:
        replica = directory.replica(replica_id)
        if replica is None:
            return None
        config = services.config
        found = legs[replica_id] = Leg(
            replica,
            directory.edition,
            services.fleet.activity(replica_id),
            # llama.cpp closes after each stream without saying so.
            target_at(replica.url, replica.kind != "llamacpp"),
            _head(replica.url, order.kind, opened(config.secret_key, replica.sealed_key)),
            _salt(order, config) if replica.kind == "vllm" else None,
        )
    return found


def must_assemble(order: Order, leg: Leg) -> bool:
    """Is a stream asked of the engine although the client wants one plain answer?

    llama.cpp does not notice that a caller has gone unless it streams to it.
    """
    return not order.asked.stream and leg.kind == "llamacpp" and order.kind in _STREAMS


def counts(order: Order, leg: Leg | None) -> tuple[bool, bool]:
    """Does the engine count tokens along, in each event; and each choice apart, at its end?"""
    kind = leg.kind if leg is not None else ""
    return kind == "vllm", kind == "llamacpp" and order.asked.weight > 1


def http_request(
    order: Order, grant: Grant, leg: Leg, *, headers: Headers, request_id: str
) -> bytes:
    """Return head and body as they go on the wire."""
    orders = Orders(
        model=leg.model or order.way.pool_name,
        stream=order.asked.stream or must_assemble(order, leg),
        max_tokens=_most_output(order, leg),
        priority=_priority(order, grant, leg) if leg.takes_priority else None,
        cache_salt=leg.salt,
        counts_along=leg.kind == "vllm",
    )
    body = fields.build(order.asked, orders)
    lines = [
        leg.head,
        b"x-request-id: " + request_id.encode(),
        b"content-length: %d" % len(body),
    ]
    if order.session:
        lines.append(b"x-session-id: " + order.session.encode())
    for name, value in headers:
        if name in TO_ENGINE:
            lines.append(name + b": " + value)
    lines += (b"", body)
    return b"\r\n".join(lines)


@lru_cache(maxsize=1024)
def _head(url: str, kind: Kind, api_key: str) -> bytes:
    """Return the part of the head that is the same for all requests to one replica and route."""
    target = target_at(url)
    lines = [
        f"POST {target.prefix}{fields.PATH_OF[kind]} HTTP/1.1",
        f"host: {target.authority}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        "accept-encoding: identity",
        "user-agent: fairway",
    ]
    if api_key:  # the engine's own; what the client showed stays here
        lines.append(f"authorization: Bearer {api_key}")
    return "\r\n".join(lines).encode()


def _most_output(order: Order, leg: Leg) -> int | None:
    """Return the longest answer, for clients that name none; None where the engine bounds it.

    Where nothing but the context binds, most engines take what the prompt leaves of it, and would
    refuse more than that. llama.cpp would take it for endless.
    """
    if order.most_output == order.way.context and leg.kind != "llamacpp":
        return None
    return order.most_output


def _priority(order: Order, grant: Grant, leg: Leg) -> int | None:
    """Return our order in the engine's words, or None where it has no word for it."""
    if leg.kind == "vllm":
        # Lower is sooner. Negative, so that whoever passes us by with the default 0 comes last.
        return grant.rank_ms // 1000 - PRIORITY_BASE_S
    if leg.kind == "sglang":
        # Larger is sooner, in few levels of effective priority at the start.
        is_batch = order.caller.service_class is ServiceClass.BATCH
        effective_ms = grant.queue_wait_ms - (HANDICAP_MS if is_batch else 0)
        level = (effective_ms + HANDICAP_MS) // SGLANG_LEVEL_MS
        return max(0, min(SGLANG_LEVELS - 1, level))
    return None


def _salt(order: Order, config: Config) -> str | None:
    """Return what keeps other people from timing this one's prompts in the prefix cache."""
    if config.cache_salt == "off":
        return None
    group = order.caller.key.group_id if config.cache_salt == "group" else ""
    owner = f"group {group}" if group else f"user {order.caller.user_id}"
    return hmac.digest(config.secret_key.encode(), f"cache salt {owner}".encode(), "sha256").hex()[
        :32
    ]
