"""Understands one request: who asks, for what, of which model, and whether it may be had at all.

Everything that can be refused without waiting is refused here, before the ledger hears of it.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from gateway.authenticate import authenticate, recognise
from gateway.caller import Caller, Way
from gateway.charges import Reservation
from gateway.client import Client
from gateway.config import Config
from gateway.core import affinity, fields
from gateway.core.fields import Asked, BadField, Kind
from gateway.core.headers import Headers
from gateway.core.types import ServiceClass
from gateway.errors import BadRequest, GatewayError, NotFound
from gateway.quota import Known
from gateway.services import Services
from quotas.snapshots.directory import PoolSnapshot

PREFILL_PER_S: Final = 500  # tokens; slower than any engine worth its slot
LONGEST_TOKEN: Final = 256  # characters; no vocabulary has a token for more
PATIENCE_MARGIN_S = 2.0  # a refusal must reach a client before it gives up
_TEXT_LIMIT: Final = 128
_FINGERPRINT_END: Final = 4096
_PATIENCE, _PLACE, _REQUEST_ID = "x-stainless-read-timeout", "x-fairway-place", "x-request-id"
_OF_INTEREST: Final = {
    name.encode(): name for name in (affinity.SESSION_HEADER, _PATIENCE, _PLACE, _REQUEST_ID)
}
_NOTHING_COUNTED: Final = Reservation()
_BATCH: Final = ServiceClass.BATCH


class Order:
    """One request, understood."""

    __slots__ = (
        "asked", "caller", "client_request_id", "fingerprint", "kind", "most_output", "patience_s",
        "place", "prompt_tokens", "reservation", "session", "way",
    )  # fmt: skip

    def __init__(
        self,
        way: Way,
        asked: Asked,
        *,
        prompt_tokens: int,  # estimated
        most_output: int | None,  # the tightest limit on the length of its answer
        reservation: Reservation,  # of its counted limits
        session: str,  # key of its conversation, "" when it has none
        fingerprint: str,  # tells its body from its sender's others
        patience_s: float | None,  # how long the client waits for bytes, where it says so
        place: str,  # a kept place it shows
        client_request_id: str,
    ) -> None:
        self.way: Final = way
        self.caller: Final = way.caller
        self.kind: Final = way.kind
        self.asked: Final = asked
        self.prompt_tokens: Final = prompt_tokens
        self.most_output: Final = most_output
        self.reservation: Final = reservation
        self.session: Final = session
        self.fingerprint: Final = fingerprint
        self.patience_s: Final = patience_s
        self.place: Final = place
        self.client_request_id: Final = client_request_id

    @property
    def names_tier(self) -> str:
        """Return the service tier its answer names, "" where its client did not ask."""
        return self.way.names_tier if self.asked.tier else ""

    @property
    def prefill_s(self) -> float:
        """Return how long reading its prompt may take, for time limits only."""
        return self.prompt_tokens / PREFILL_PER_S

    def is_kept_alive(self, config: Config) -> bool:
        """Can comments keep the client waiting while it is queued?"""
        if not (self.asked.stream or config.keepalive_plain):
            return False
        hold_s = config.hold_s + config.comment_every_s
        return self.patience_s is None or self.patience_s >= hold_s

    def ttl_ms(self, config: Config) -> int:
        """Return the longest it may wait: not longer than its client does."""
        is_batch = self.caller.service_class is _BATCH
        ttl_s = config.ttl_batch_s if is_batch else config.ttl_interactive_s
        if self.patience_s is None or self.is_kept_alive(config):
            return ttl_s * 1000
        return round(min(float(ttl_s), max(1.0, self.patience_s - PATIENCE_MARGIN_S)) * 1000)


def take_at_once(services: Services, kind: Kind, client: Client) -> Order | None:
    """Read one request, or refuse it; None where something has to be waited for.

    It is the usual case: the body came with the head, and the key is one of the few in use.
    """
    if not client.is_whole:
        return None
    caller = recognise(client.headers, services.directory, services.config.secret_key)
    if caller is None:
        return None
    try:
        body = client.whole_body(services.config.body_limit)
        asked = _read(services, kind, body)
        caller = _in_class(caller, asked)
        known = services.quota.at_hand(caller)
        if known is None:
            client.unread(body)
            return None
        return _order(services, client, caller, asked, known, body)
    except GatewayError as error:
        services.outbox.rejected(caller.key.key_id, error.code)
        raise


async def take(services: Services, kind: Kind, client: Client) -> Order:
    """Read one request, or refuse it."""
    # The key first: whoever has none gets no megabytes read.
    caller = await authenticate(client.headers, services.directory, services.config.secret_key)
    try:
        body = await client.body(services.config.body_limit)
        asked = _read(services, kind, body)
        caller = _in_class(caller, asked)
        known = services.quota.at_hand(caller) or await services.quota.asked(caller)
        return _order(services, client, caller, asked, known, body)
    except GatewayError as error:
        services.outbox.rejected(caller.key.key_id, error.code)
        raise


def _read(services: Services, kind: Kind, body: bytes) -> Asked:
    try:
        return fields.read(kind, body, services.rules)
    except BadField as error:
        raise BadRequest(str(error), param=error.param, code=error.code) from None


def _in_class(caller: Caller, asked: Asked) -> Caller:
    """Return the caller in the class of this one request.

    An interactive key may say that one may wait; a batch key never gains by asking.
    """
    return caller.as_batch if asked.tier == "flex" else caller


def _order(
    services: Services, client: Client, caller: Caller, asked: Asked, known: Known, body: bytes
) -> Order:
    way = _way(services, caller, asked)
    _check_context(asked, way)
    most_output = _check_output(asked, way)
    prompt = services.estimator.prompt_tokens(
        way.pool_name, asked.characters, asked.prompt_ids, asked.images
    )
    _check_prompt(prompt, way)
    reservation = _NOTHING_COUNTED
    if caller.is_counted:
        reservation = services.quota.reserve(known, asked, prompt, most_output)
        most_output = reservation.most_output
    given = _given(client.headers)
    return Order(
        way,
        asked,
        prompt_tokens=prompt,
        most_output=most_output,
        reservation=reservation,
        session=affinity.session_key(caller.user_id, given, asked.fields, way.pool_name),
        fingerprint=_fingerprint(body),
        patience_s=_seconds(given.get(_PATIENCE, "")),
        place=given.get(_PLACE, "")[:_TEXT_LIMIT],
        client_request_id=given.get(_REQUEST_ID, "")[:_TEXT_LIMIT],
    )


def _fingerprint(body: bytes) -> str:
    """Return what tells a body from its sender's others; of a long one both ends are looked at.

    It finds the kept place of a client that shows none. Others' bodies are never compared, so a
    checksum will do: who makes two bodies alike only changes places with herself.
    """
    size = len(body)
    if size > 2 * _FINGERPRINT_END:
        body = body[:_FINGERPRINT_END] + body[-_FINGERPRINT_END:]
    return f"{size}.{crc32(body)}"


def _given(headers: Headers) -> dict[str, str]:
    """Return those of our headers that the client sent; of two with one name the first."""
    return {
        _OF_INTEREST[name]: value.decode("latin-1")
        for name, value in reversed(headers)
        if name in _OF_INTEREST
    }


def _way(services: Services, caller: Caller, asked: Asked) -> Way:
    """Return the caller's way to the pool of the model, made once for each edition of the books."""
    directory, name = services.directory, (asked.kind, asked.model)
    found = caller.ways.get(name)
    if found is None or found.edition is not directory.edition:
        pool = _pool(services, caller, asked)
        found = caller.ways[name] = Way(
            caller,
            asked.kind,
            pool,
            directory.edition,
            directory.replica_ids(pool.name),
            services.metrics.of(pool.name, caller.service_class),
        )
    return found


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


def _check_context(asked: Asked, way: Way) -> None:
    """Refuse what certainly does not fit; of the rest the engine is the judge, who counts tokens.

    llama.cpp would read all of a prompt before it says so, and takes any `max_tokens`.
    """
    if way.context is None or asked.kind not in fields.GENERATES:
        return
    # Of several prompts the longest has at least the average.
    least = (asked.prompt_ids + asked.characters // LONGEST_TOKEN) // asked.weight
    wanted = asked.max_tokens or 1
    if least + wanted > way.context:
        raise BadRequest(
            f"The context of {way.pool_name} is {way.context} tokens of prompt and answer "
            f"together; the prompt has at least {max(1, least)} and {wanted} are asked for.",
            param="max_tokens" if least < way.context else None,
            code="context_length_exceeded",
        )


def _check_output(asked: Asked, way: Way) -> int | None:
    most = way.most_output
    if most is not None and asked.max_tokens is not None and asked.max_tokens > most:
        raise BadRequest(
            f"At most {most} tokens of output may be asked for.",
            param="max_tokens",
            code="max_tokens_too_large",
        )
    return most


def _check_prompt(prompt: int, way: Way) -> None:
    most = way.most_prompt
    if most is not None and prompt > most:
        raise BadRequest(
            f"The prompt has about {prompt} tokens; at most {most} may be sent.",
            code="prompt_too_long",
        )


def _seconds(text: str) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
