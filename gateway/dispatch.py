"""Writes the HTTP request that a replica gets in place of the client's."""

from __future__ import annotations

import hmac
from functools import lru_cache

from gateway.config import Config
from gateway.core import fields
from gateway.core.fields import Kind, Orders
from gateway.core.headers import TO_ENGINE, Headers
from gateway.core.types import Grant, ServiceClass
from gateway.intake import Order
from gateway.upstream import Target, target_at
from quotas.snapshots.directory import ReplicaSnapshot
from quotas.snapshots.sealed import opened

_STREAMS = frozenset({Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES, Kind.MESSAGES})
PRIORITY_BASE_S = 1 << 32
# SGLang keeps a metric series for each priority it sees, so there are few of them.
SGLANG_LEVELS = 8
SGLANG_LEVEL_MS = 150_000
HANDICAP_MS = 600_000


def must_assemble(order: Order, replica: ReplicaSnapshot) -> bool:
    """Is a stream asked of the engine although the client wants one plain answer?

    llama.cpp does not notice that a caller has gone unless it streams to it.
    """
    return replica.kind == "llamacpp" and not order.asked.stream and order.kind in _STREAMS


def counts(order: Order, replica: ReplicaSnapshot | None) -> tuple[bool, bool]:
    """Does the engine count tokens along, in each event; and each choice apart, at its end?"""
    kind = replica.kind if replica is not None else ""
    return kind == "vllm", kind == "llamacpp" and order.asked.weight > 1


def target_of(replica: ReplicaSnapshot) -> Target:
    """Return where the replica listens; llama.cpp closes after each stream without saying so."""
    return target_at(replica.url, replica.kind != "llamacpp")


def http_request(
    order: Order,
    grant: Grant,
    replica: ReplicaSnapshot,
    *,
    config: Config,
    headers: Headers,
    request_id: str,
) -> bytes:
    """Return head and body as they go on the wire."""
    orders = Orders(
        model=replica.model or order.pool.name,
        stream=order.asked.stream or must_assemble(order, replica),
        max_tokens=_most_output(order, replica),
        priority=_priority(order, grant, replica),
        cache_salt=_salt(order, config) if replica.kind == "vllm" else None,
        counts_along=counts(order, replica)[0],
    )
    body = fields.build(order.asked, orders)
    lines = [
        _head(replica.url, order.kind, opened(config.secret_key, replica.sealed_key)),
        b"x-request-id: " + request_id.encode(),
        b"content-length: %d" % len(body),
    ]
    if order.session:
        lines.append(b"x-session-id: " + order.session.encode())
    lines += [name + b": " + value for name, value in headers if name in TO_ENGINE]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


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


def _most_output(order: Order, replica: ReplicaSnapshot) -> int | None:
    """Return the longest answer, for clients that name none; None where the engine bounds it.

    Where nothing but the context binds, most engines take what the prompt leaves of it, and would
    refuse more than that. llama.cpp would take it for endless.
    """
    if order.most_output == order.pool.context and replica.kind != "llamacpp":
        return None
    return order.most_output


def _priority(order: Order, grant: Grant, replica: ReplicaSnapshot) -> int | None:
    """Return our order in the engine's words, or None where it has no say."""
    if not replica.takes_priority:
        return None
    if replica.kind == "vllm":
        # Lower is sooner. Negative, so that whoever passes us by with the default 0 comes last.
        return grant.rank_ms // 1000 - PRIORITY_BASE_S
    if replica.kind == "sglang":
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
