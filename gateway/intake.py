"""Understands one request: who asks, for what, of which model, and whether it may be had at all.

Everything that can be refused without waiting is refused here, before the ledger hears of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

from gateway.authenticate import Caller, authenticate
from gateway.charges import Reservation
from gateway.client import Client
from gateway.config import Config
from gateway.core import affinity, fields
from gateway.core.fields import Asked, BadField, Kind
from gateway.core.headers import first
from gateway.core.types import ServiceClass
from gateway.errors import BadRequest, GatewayError, NotFound
from gateway.services import Services
from quotas.snapshots.directory import Limits, PoolSnapshot

PATIENCE_MARGIN_S = 2.0  # a refusal must reach a client before it gives up
_TEXT_LIMIT = 128


@dataclass(frozen=True)
class Order:
    """One request, understood."""

    kind: Kind
    path: str
    caller: Caller
    asked: Asked
    pool: PoolSnapshot
    prompt_tokens: int  # estimated
    most_output: int | None  # the tightest limit on the length of its answer
    reservation: Reservation  # of its counted limits
    session: str  # key of its conversation, "" when it has none
    fingerprint: str  # SHA-256 of the body
    patience_s: float | None  # how long the client waits for bytes, where it says so
    place: str  # a kept place it shows
    client_request_id: str

    @cached_property
    def labels(self) -> tuple[str, str]:
        """Return the labels of its metrics."""
        return self.pool.name, self.caller.service_class.value

    def is_kept_alive(self, config: Config) -> bool:
        """Can comments keep the client waiting while it is queued?"""
        if not (self.asked.stream or config.keepalive_plain):
            return False
        hold_s = config.hold_s + config.comment_every_s
        return self.patience_s is None or self.patience_s >= hold_s

    def ttl_ms(self, config: Config) -> int:
        """Return the longest it may wait: not longer than its client does."""
        is_batch = self.caller.service_class is ServiceClass.BATCH
        ttl_s = float(config.ttl_batch_s if is_batch else config.ttl_interactive_s)
        if self.patience_s is not None and not self.is_kept_alive(config):
            ttl_s = min(ttl_s, max(1.0, self.patience_s - PATIENCE_MARGIN_S))
        return round(ttl_s * 1000)


async def take(services: Services, kind: Kind, path: str, client: Client) -> Order:
    """Read one request, or refuse it."""
    # The key first: whoever has none gets no megabytes read.
    caller = await authenticate(client.headers, services.directory, services.config.secret_key)
    try:
        return await _order(services, kind, path, client, caller)
    except GatewayError as error:
        services.outbox.rejected(caller.key.key_id, error.code)
        raise


async def _order(
    services: Services, kind: Kind, path: str, client: Client, caller: Caller
) -> Order:
    body = await client.body(services.config.body_limit)
    try:
        asked = fields.read(kind, body, services.rules)
    except BadField as error:
        raise BadRequest(str(error), param=error.param, code=error.code) from None
    if asked.tier == "flex":
        # One request of an interactive key that may wait; a batch key never gains by asking.
        caller = replace(caller, service_class=ServiceClass.BATCH)
    pool = _pool(services, caller, asked)
    most_output = _check_output(asked, caller.limits, pool)
    prompt = services.estimator.prompt_tokens(
        pool.name, asked.characters, asked.prompt_ids, asked.images
    )
    _check_prompt(prompt, caller.limits)
    reservation = await services.quota.reserve(caller, asked, prompt, most_output)
    return Order(
        kind=kind,
        path=path,
        caller=caller,
        asked=asked,
        pool=pool,
        prompt_tokens=prompt,
        most_output=reservation.most_output,
        reservation=reservation,
        session=_session(client, caller, asked, pool),
        fingerprint=hashlib.sha256(body).hexdigest(),
        patience_s=_seconds(client.header(b"x-stainless-read-timeout")),
        place=client.header(b"x-fairway-place")[:_TEXT_LIMIT],
        client_request_id=client.header(b"x-request-id")[:_TEXT_LIMIT],
    )


def _pool(services: Services, caller: Caller, asked: Asked) -> PoolSnapshot:
    """Return the pool of the model; unknown and not allowed look the same."""
    pool = services.directory.pool(asked.model)
    allowed = caller.limits.allowed_models
    if pool is None or (allowed is not None and not {pool.name, asked.model} & set(allowed)):
        raise NotFound(
            f"The model `{asked.model[:_TEXT_LIMIT]}` does not exist, or this key may not use it.",
            code="model_not_found",
            param="model",
        )
    return pool


def _check_output(asked: Asked, limits: Limits, pool: PoolSnapshot) -> int | None:
    scopes = (limits.key, limits.person, limits.group)
    stated = [scope["max_output_tokens"] for scope in scopes if "max_output_tokens" in scope]
    stated += [limit for limit in (pool.max_output_tokens, pool.context) if limit is not None]
    most = min(stated, default=None)
    if asked.max_tokens is not None and most is not None and asked.max_tokens > most:
        raise BadRequest(
            f"At most {most} tokens of output may be asked for.",
            param="max_tokens",
            code="max_tokens_too_large",
        )
    return most


def _check_prompt(prompt: int, limits: Limits) -> None:
    scopes = (limits.key, limits.person, limits.group)
    stated = [scope["max_prompt_tokens"] for scope in scopes if "max_prompt_tokens" in scope]
    if stated and prompt > min(stated):
        raise BadRequest(
            f"The prompt has about {prompt} tokens; at most {min(stated)} may be sent.",
            code="prompt_too_long",
        )


def _session(client: Client, caller: Caller, asked: Asked, pool: PoolSnapshot) -> str:
    named = first(client.headers, affinity.SESSION_HEADER.encode())
    headers = {affinity.SESSION_HEADER: named.decode("latin-1")} if named else {}
    return affinity.session_key(caller.user_id, headers, asked.fields, pool.name)


def _seconds(text: str) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
