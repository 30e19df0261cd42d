"""One request's life, in order:

    authenticate -> read -> validate -> admit -> forward -> release -> record

Rule 1: a lease is given back exactly once, at the engine's end, by `_settle`; no `await` stands
between taking and giving back, so no cancellation can come between either.
Rule 2: a client that leaves is noticed in every state: queued -> cancelled, granted -> released,
running -> the engine's connection is closed.
Rule 3: a second try only when the client has seen no byte that came from an engine, once, and on
another replica. An engine that says "busy" (429, 503) spends no try: the grant is put back.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import hmac
import logging
import os

from gateway import errors, relay
from gateway.answer import Answer
from gateway.authenticate import Caller, authenticate
from gateway.client import Client
from gateway.core import affinity, fields
from gateway.core.fields import Asked, BadField, Kind, Orders
from gateway.core.headers import first, to_engine
from gateway.core.types import Grant, Outcome, ServiceClass, Settlement, Ticket
from gateway.errors import ClientGone, EngineFailed, EngineTimeout, GatewayError, NotFound
from gateway.ledger.interface import Refused
from gateway.policies import write_key
from gateway.services import Services
from gateway.upstream import Closed, ConnectFailed, Target
from quotas.snapshots.directory import PoolSnapshot, ReplicaSnapshot
from quotas.snapshots.usage import UsageRecord

log = logging.getLogger("fairway.request")

PATIENCE_CHECK_S = 0.1  # a request still queued then is asked how long it would wait
PATIENCE_MARGIN_S = 2.0
PRIORITY_BASE = 1 << 32
# llama.cpp frees a slot only after the batch it computes; its slot stays ours that much longer.
LLAMACPP_LINGER_S = 0.5
LLAMACPP_PREFILL_LINGER_S = 2.0
STREAMS_ALWAYS = frozenset({Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES, Kind.MESSAGES})


def new_id() -> str:
    """Return a request id: unique for ever, sorted roughly by time."""
    return f"req_{os.urandom(12).hex()}"


class Request:
    """One request to an engine, from its head to its record."""

    def __init__(self, services: Services, kind: Kind, path: str, client: Client) -> None:
        self.services = services
        self.kind = kind
        self.path = path
        self.client = client
        self.caller: Caller | None = None
        self.asked: Asked | None = None
        self.pool: PoolSnapshot | None = None
        self.ticket: Ticket | None = None
        self.grant: Grant | None = None
        self.answer: Answer | None = None
        self.status = 0  # what the client was told
        self.arrived_s = client.loop.time()
        self.arrived_at = dt.datetime.now(dt.UTC)
        self.granted_s: float | None = None
        self.queued_since_s: float | None = None  # set while it waits in line
        self.expired: GatewayError | None = None  # a time limit that was passed
        self.line = relay.Line(self)
        self._granting: asyncio.Future[Grant] | None = None
        self._recorded = False
        self._tries = 0

    # The life

    async def run(self) -> None:
        """Serve the request; nothing of it is left when this returns."""
        services = self.services
        services.live.add(self)
        try:
            await self._serve()
        except ClientGone:
            pass
        except GatewayError as error:
            await self._refuse(error)
        except asyncio.CancelledError:
            self.expired = errors.Unavailable("The gateway was stopped.", code="shutting_down")
            raise
        except Exception:
            log.exception("request %s failed", self.client.request_id)
            await self._refuse(GatewayError("Something went wrong in the gateway."))
        finally:
            self._end()
            services.live.discard(self)

    async def _serve(self) -> None:
        if self.services.draining:
            raise errors.Unavailable(
                "This gateway is being restarted; try again.", code="shutting_down", retry_after_s=1
            )
        config = self.services.config
        self.caller = await authenticate(
            self.client.headers, self.services.directory, config.secret_key
        )
        body = await self.client.body(config.body_limit)
        self._validate(body)
        self.client.watch()
        self.ticket = self._ticket(body)
        if self.caller.end_user:
            write_key(self.services.ledger, self.caller.key, self.caller.user_id)
        self.grant = await self._wait_for(self.services.ledger.admit(self.ticket))
        while True:
            answer = self.answer = self._start(self.grant)
            if await self.line.forward(answer):
                return
            self.grant = await self._again(answer)

    # Validate

    def _validate(self, body: bytes) -> None:
        assert self.caller is not None  # noqa: S101
        try:
            asked = self.asked = fields.read(self.kind, body, self.services.rules)
        except BadField as error:
            raise errors.BadRequest(str(error), param=error.param, code=error.code) from None
        limits = self.caller.limits
        pool = self.services.directory.pool(asked.model)
        allowed = limits.allowed_models
        if pool is None or (allowed is not None and not {pool.name, asked.model} & set(allowed)):
            raise NotFound(
                f"The model `{asked.model}` does not exist, or this key may not use it.",
                code="model_not_found",
                param="model",
            )
        self.pool = pool
        most = self._most_output()
        if asked.max_tokens is not None and most is not None and asked.max_tokens > most:
            raise errors.BadRequest(
                f"At most {most} tokens of output may be asked for.",
                param="max_tokens",
                code="max_tokens_too_large",
            )
        self._check_prompt(limits.key.get("max_prompt_tokens"))

    def _most_output(self) -> int | None:
        """Return the tightest limit on the length of an answer."""
        assert self.caller is not None
        assert self.pool is not None
        limits = self.caller.limits
        scopes = (limits.key, limits.person, limits.group)
        stated = [scope["max_output_tokens"] for scope in scopes if "max_output_tokens" in scope]
        for limit in (self.pool.max_output_tokens, self.pool.context):
            if limit is not None:
                stated.append(limit)
        return min(stated, default=None)

    def _check_prompt(self, most: int | None) -> None:
        if most is None:
            return
        guess = self._prompt_tokens()
        if guess > most:
            raise errors.BadRequest(
                f"The prompt has about {guess} tokens; this key may send {most}.",
                code="prompt_too_long",
            )

    def _prompt_tokens(self) -> int:
        assert self.asked is not None
        assert self.pool is not None
        asked = self.asked
        return self.services.estimator.prompt_tokens(
            self.pool.name, asked.characters, asked.prompt_ids, asked.images
        )

    # Admit

    def _ticket(self, body: bytes) -> Ticket:
        caller, asked, pool = self.caller, self.asked, self.pool
        assert caller is not None
        assert asked is not None
        assert pool is not None
        estimator = self.services.estimator
        headers = self.client.headers
        hint = first(headers, b"x-session-id")
        session = affinity.session_key(
            caller.user_id,
            {affinity.SESSION_HEADER: hint.decode("latin-1")} if hint else {},
            asked.fields,
            pool.name,
        )
        names = [replica.replica_id for replica in self.services.directory.replicas(pool.name)]
        order = affinity.rendezvous(session, names) if session else tuple(names)
        prompt = self._prompt_tokens()
        cached = min(estimator.cached_tokens(session), prompt - 1) if session else 0
        generates = self.kind in fields.GENERATES
        output = estimator.output_tokens(caller.user_id, pool.name, asked.max_tokens)
        place = first(headers, b"x-fairway-place")
        return Ticket(
            ticket_id=self.client.request_id,
            key_id=caller.key.key_id,
            user_id=caller.user_id,
            service_class=caller.service_class,
            pool=pool.name,
            weight=asked.weight,
            prefill_tokens=prompt - cached,
            output_tokens=output * asked.weight if generates else 0,
            replica_order=order,
            session=session,
            ttl_ms=self._ttl_ms(),
            place=place.decode("latin-1")[:128] if place else "",
            fingerprint=hashlib.sha256(body).hexdigest(),
            interrupted=self._record(Outcome.INTERRUPTED, self._prompt_tokens()),
        )

    @property
    def patience_s(self) -> float | None:
        """How long the client waits for bytes, where it says so."""
        raw = first(self.client.headers, b"x-stainless-read-timeout")
        try:
            return max(0.0, float(raw)) if raw else None
        except ValueError:
            return None

    @property
    def is_kept_alive(self) -> bool:
        """Can comments keep the client waiting while it is queued?"""
        config, patience_s = self.services.config, self.patience_s
        streams = self.asked is not None and (self.asked.stream or config.keepalive_plain)
        return streams and (
            patience_s is None or patience_s >= config.hold_s + config.comment_every_s
        )

    def _ttl_ms(self) -> int:
        config = self.services.config
        assert self.caller is not None  # noqa: S101
        is_batch = self.caller.service_class is ServiceClass.BATCH
        ttl_s = float(config.ttl_batch_s if is_batch else config.ttl_interactive_s)
        if self.patience_s is not None and not self.is_kept_alive:
            ttl_s = min(ttl_s, max(1.0, self.patience_s - PATIENCE_MARGIN_S))
        return round(ttl_s * 1000)

    async def _wait_for(self, granting: asyncio.Future[Grant]) -> Grant:
        """Wait in line; raises when it was turned away, put out of the queue, or left alone."""
        self._granting = granting
        granting.add_done_callback(self._granted_or_refused)
        if not granting.done():
            await self.line.queue(granting)
        self._granting = None
        if self.client.gone:
            self._abandon(granting)
            raise ClientGone
        if self.expired is not None:
            self._abandon(granting)
            raise self.expired
        try:
            grant = granting.result()
        except Refused as refused:
            raise errors.from_refused(refused) from None
        self.granted_s = self.client.loop.time()
        return grant

    def _granted_or_refused(self, granting: asyncio.Future[Grant]) -> None:
        if not granting.cancelled():
            granting.exception()  # looked at, so that nobody complains about it
        self.client.bell.ring()

    def _abandon(self, granting: asyncio.Future[Grant]) -> None:
        """Leave the queue; a grant that is on its way here all the same is given back."""
        assert self.ticket is not None  # noqa: S101
        self._granting = None
        ledger, ticket_id = self.services.ledger, self.ticket.ticket_id
        outcome = self._why_evicted()
        ledger.cancel(ticket_id, outcome)
        record = self._record(outcome)

        def give_back(future: asyncio.Future[Grant]) -> None:
            if not future.cancelled() and future.exception() is None:
                ledger.release(ticket_id, Settlement(outcome, 0, 0, 0, record))

        if not self._recorded:
            self._recorded = True
            self.services.outbox.append(record)
            self._count(outcome)
        granting.add_done_callback(give_back)

    def _why_evicted(self) -> Outcome:
        if self.client.gone:
            return Outcome.EVICTED_CLIENT_GONE
        if self.services.draining:
            return Outcome.EVICTED_SHUTTING_DOWN
        return Outcome.EVICTED_TIMED_OUT

    # Forward

    def _start(self, grant: Grant) -> Answer:
        """Send the request to the replica of the grant."""
        replica = self.services.directory.replica(grant.replica_id)
        asked, client, ticket = self.asked, self.client, self.ticket
        assert asked is not None
        assert ticket is not None
        self._tries += 1
        plain_by_stream = (
            replica is not None
            and replica.kind == "llamacpp"
            and not asked.stream
            and self.kind in STREAMS_ALWAYS
        )
        answer = Answer(
            self.kind,
            client.bell,
            self.services.buffers,
            client.loop.time,
            drop_usage=not asked.include_usage and not plain_by_stream,
            keep_chunks=plain_by_stream,
            on_content=self._content_came,
            on_end=self._answer_ended,
        )
        if replica is None:  # removed from the books a moment ago
            answer.lost(ConnectFailed("the replica was removed"))
            return answer
        activity = self.services.fleet.activity(replica.replica_id)
        activity.began(ticket.ticket_id, client.loop.time(), ticket.prefill_tokens / 2000)
        orders = self._orders(grant, replica, stream=asked.stream or plain_by_stream)
        request = self._http(replica, fields.build(asked, orders))
        target = Target.from_url(replica.url, reuse=replica.kind != "llamacpp")
        answer.call = self.services.upstream.send(target, request, answer)
        return answer

    def _orders(self, grant: Grant, replica: ReplicaSnapshot, *, stream: bool) -> Orders:
        assert self.caller is not None
        assert self.pool is not None
        priority = None
        if replica.takes_priority and replica.kind == "vllm":
            # Negative, so that whoever passes us by with the engine's default 0 comes last.
            priority = grant.rank_ms // 1000 - PRIORITY_BASE
        salt = self._salt() if replica.kind == "vllm" else None
        return Orders(
            model=replica.model or self.pool.name,
            stream=stream,
            max_tokens=self._most_output(),
            priority=priority,
            cache_salt=salt,
        )

    def _salt(self) -> str | None:
        """Return what keeps other people's prompts out of this one's cache timing."""
        assert self.caller is not None  # noqa: S101
        how = self.services.config.cache_salt
        if how == "off":
            return None
        by_group = how == "group" and self.caller.key.group_id
        owner = f"group {self.caller.key.group_id}" if by_group else f"user {self.caller.user_id}"
        secret = self.services.config.secret_key.encode()
        return hmac.digest(secret, f"cache salt {owner}".encode(), "sha256").hex()[:32]

    def _http(self, replica: ReplicaSnapshot, body: bytes) -> bytes:
        target = Target.from_url(replica.url)
        lines = [
            f"POST {target.prefix}{self.path} HTTP/1.1".encode(),
            b"host: " + target.authority.encode(),
            b"content-type: application/json",
            b"accept: application/json, text/event-stream",
            b"accept-encoding: identity",
            b"user-agent: fairway",
            b"x-request-id: " + self.client.request_id.encode(),
            b"content-length: " + str(len(body)).encode(),
        ]
        assert self.ticket is not None  # noqa: S101
        if self.ticket.session:
            lines.append(b"x-session-id: " + self.ticket.session.encode())
        lines += [name + b": " + value for name, value in to_engine(self.client.headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _content_came(self, is_first: bool) -> None:
        assert self.grant is not None
        assert self.ticket is not None
        activity = self.services.fleet.activity(self.grant.replica_id)
        now = self.client.loop.time()
        if is_first:
            activity.first_content(self.ticket.ticket_id, now)
            self.services.ledger.prefill_done(self.ticket.ticket_id)
        else:
            activity.moved(now)

    def _answer_ended(self, answer: Answer) -> None:
        """The engine has ended: tell the fleet, and give the lease back if that was the try."""
        if self.grant is None or self.ticket is None:
            return
        fleet, replica_id = self.services.fleet, self.grant.replica_id
        activity = fleet.activity(replica_id)
        activity.ended(self.ticket.ticket_id)
        if answer.error is None and answer.status:
            if answer.status == 200 and answer.usage.error_code:
                activity.failed()
            else:
                activity.answered(answer.status)
        elif not isinstance(answer.error, Closed):
            if answer.passed:
                activity.failed()
            else:
                activity.unreachable()
            fleet.noticed(replica_id)
        if answer.status == 200 and (answer.passed or answer.error is None):
            self._settle()

    async def _again(self, answer: Answer) -> Grant:
        """Go back into the queue after an answer that may be tried elsewhere, or give up."""
        ledger = self.services.ledger
        assert self.ticket is not None
        assert self.grant is not None
        replica_id, self.grant = self.grant.replica_id, None
        if answer.status in (429, 503):
            self._tries -= 1
            self.services.metrics.put_back.inc()
            self.services.fleet.noticed(replica_id)
            return await self._wait_for(ledger.put_back(self.ticket.ticket_id, avoid=replica_id))
        self.services.metrics.retries.inc()
        grant = await self._wait_for(ledger.put_back(self.ticket.ticket_id, avoid=replica_id))
        self.grant = grant
        if grant.replica_id == replica_id and not isinstance(answer.error, ConnectFailed):
            # Nobody else is up, and what broke this replica once may do so again.
            raise self.failure(answer)
        return grant

    def may_try_again(self, answer: Answer) -> bool:
        """Tell whether the request may go back into the queue."""
        if self.expired is not None:
            return False
        if answer.status in (429, 503):
            return True
        is_failure = answer.error is not None or answer.status >= 500
        return is_failure and (self._tries < 2 or isinstance(answer.error, ConnectFailed))

    def failure(self, answer: Answer) -> GatewayError:
        """Say what went wrong with the engine."""
        if self.expired is not None:
            return self.expired
        if answer.error is not None:
            return EngineFailed("The engine broke off.", code="engine_unreachable")
        return relay.engine_error(answer)

    # Release and record

    def _settle(self) -> None:
        """Give the lease back with what was used; only the first call does anything."""
        if self.grant is None or self._recorded or self.ticket is None:
            return
        self._recorded = True
        grant, answer, services = self.grant, self.answer, self.services
        outcome = self._outcome(answer)
        record = self._record(outcome)
        usage = answer.usage if answer is not None else None
        completion = self._completion_tokens()
        prompt = usage.prompt_tokens if usage else 0
        settlement = Settlement(
            outcome=outcome,
            prompt_tokens=prompt or 0,
            cached_tokens=(usage.cached_tokens or 0) if usage else 0,
            completion_tokens=completion,
            record=record,
        )
        linger_s = self._linger_s(grant)
        if linger_s:
            self.client.loop.call_later(
                linger_s, services.ledger.release, self.ticket.ticket_id, settlement
            )
        else:
            services.ledger.release(self.ticket.ticket_id, settlement)
        self._learn(grant)
        self._count(outcome)

    def _linger_s(self, grant: Grant) -> float:
        """How much longer than its answer a slot is held, where the engine lets go late."""
        replica = self.services.directory.replica(grant.replica_id)
        answer = self.answer
        if replica is None or replica.kind != "llamacpp" or answer is None:
            return 0.0
        if answer.call is None or not isinstance(answer.error, Closed):
            return 0.0
        return LLAMACPP_LINGER_S if answer.first_content_s else LLAMACPP_PREFILL_LINGER_S

    def _outcome(self, answer: Answer | None) -> Outcome:
        if self.client.gone and (answer is None or answer.error is not None):
            return Outcome.ABORTED
        if answer is None or answer.error is not None or answer.status != 200 or self.expired:
            return Outcome.FAILED
        usage = answer.usage
        if usage.error_code or usage.finish_reason in ("abort", "error"):
            return Outcome.FAILED
        if answer.is_stream and not usage.whole:
            return Outcome.FAILED
        return Outcome.SERVED

    def _completion_tokens(self) -> int:
        """Return the engine's count, or how many pieces of content came."""
        answer = self.answer
        if answer is None:
            return 0
        usage = answer.usage
        told = usage.completion_tokens
        if told is None:
            return usage.content_events
        if self.asked is not None and self.asked.weight > 1:
            # llama.cpp tells the tokens of one choice where there are several.
            return max(told, usage.content_events)
        return told

    def _record(self, outcome: Outcome, prompt_guess: int = 0) -> bytes:
        caller, asked, pool, answer = self.caller, self.asked, self.pool, self.answer
        assert caller is not None
        assert asked is not None
        assert pool is not None
        usage = answer.usage if answer is not None else None
        ran = answer is not None and answer.passed > 0
        told = usage is not None and usage.prompt_tokens is not None
        prompt = (usage.prompt_tokens if usage and told else None) or 0
        if not told and (ran or prompt_guess):
            prompt = self._prompt_tokens()
        grant, now = self.grant, self.client.loop.time()
        first_s = answer.first_content_s if answer is not None else None
        client_id = first(self.client.headers, b"x-request-id")
        return UsageRecord(
            request_id=self.client.request_id,
            arrived_at=self.arrived_at.isoformat(timespec="microseconds"),
            key_id=caller.key.key_id,
            user_id=caller.key.user_id,
            group_id=caller.key.group_id,
            service_class=caller.service_class,
            route=self.path,
            model=pool.name,
            replica_id=grant.replica_id if grant else "",
            outcome=outcome,
            status=self._told_status(),
            prompt_tokens=prompt,
            cached_tokens=usage.cached_tokens if usage else None,
            completion_tokens=self._completion_tokens(),
            reasoning_tokens=usage.reasoning_tokens if usage else None,
            estimated=bool(ran and (not told or (usage and usage.completion_tokens is None))),
            queue_wait_ms=grant.queue_wait_ms if grant else None,
            ttft_ms=round((first_s - self.arrived_s) * 1000) if first_s else None,
            duration_ms=round((now - self.arrived_s) * 1000),
            finish_reason=usage.finish_reason if usage else "",
            error_code=self._error_code(outcome),
            stream=asked.stream,
            end_user=caller.end_user,
            batch_id=caller.batch_id,
            client_request_id=client_id.decode("latin-1")[:128] if client_id else "",
        ).to_json()

    def _told_status(self) -> int:
        """Return what the client was told, or is being told now that the engine has ended."""
        if self.status or self.client.gone or self.answer is None:
            return self.status
        return self.answer.status

    def _error_code(self, outcome: Outcome) -> str:
        if self.expired is not None:
            return self.expired.code
        answer = self.answer
        if outcome is not Outcome.FAILED or answer is None:
            return ""
        if answer.usage.error_code:
            return answer.usage.error_code[:64]
        if answer.error is not None:
            return "engine_unreachable"
        return f"engine_{answer.status}" if answer.status != 200 else "engine_stream_broken"

    def _learn(self, grant: Grant) -> None:
        answer, asked, ticket = self.answer, self.asked, self.ticket
        if answer is None or asked is None or ticket is None:
            return
        estimator, usage = self.services.estimator, answer.usage
        if usage.prompt_tokens is None:
            return
        if not asked.images and not asked.prompt_ids:
            estimator.learn_prompt(ticket.pool, asked.characters, usage.prompt_tokens)
        if usage.whole:
            total = usage.prompt_tokens + (usage.completion_tokens or 0)
            estimator.learn_session(ticket.session, grant.replica_id, total)
            estimator.learn_output(ticket.user_id, ticket.pool, usage.completion_tokens or 0)

    def _count(self, outcome: Outcome) -> None:
        metrics, ticket, answer = self.services.metrics, self.ticket, self.answer
        assert ticket is not None  # noqa: S101
        labels = (ticket.pool, ticket.service_class.value)
        metrics.requests.labels(*labels, outcome.value).inc()
        if self.grant is not None:
            metrics.queue_wait.labels(*labels).observe(self.grant.queue_wait_ms / 1000)
        if answer is None:
            return
        if answer.first_content_s is not None:
            metrics.ttft.labels(*labels).observe(answer.first_content_s - self.arrived_s)
        usage = answer.usage
        metrics.tokens.labels(*labels, "prompt").inc(usage.prompt_tokens or 0)
        metrics.tokens.labels(*labels, "cached").inc(usage.cached_tokens or 0)
        metrics.tokens.labels(*labels, "completion").inc(self._completion_tokens())

    # Ends

    async def _refuse(self, error: GatewayError) -> None:
        """Tell the client what is wrong, in the shape it expects at this moment."""
        if self.ticket is None or (error.outcome is None and not self._recorded and not self.grant):
            self.services.metrics.rejected.labels(error.code).inc()
        elif error.outcome is not None and not self._recorded:
            self._recorded = True
            self.status = error.status
            self.services.outbox.append(self._record(error.outcome))
            self._count(error.outcome)
        await self.line.tell(error)

    def _end(self) -> None:
        """Leave nothing behind, whichever way it ended."""
        if self._granting is not None:
            self._abandon(self._granting)
        answer = self.answer
        if answer is not None and not answer.ended and answer.call is not None:
            answer.call.close()
        self._settle()
        if answer is not None:
            answer.drop()
        self.client.close()

    def tick(self, now: float) -> None:
        """Hold the request against the clock; called twice a second."""
        config, client, answer = self.services.config, self.client, self.answer
        if client.sending_since is not None and now - client.sending_since > config.stall_s:
            client.gone = True
            client.cut()
        elif answer is not None and not answer.ended and answer.call is not None:
            self._tick_answer(answer, now)
        client.bell.ring()

    def _tick_answer(self, answer: Answer, now: float) -> None:
        config = self.services.config
        call = answer.call
        assert call is not None  # noqa: S101
        if answer.first_content_s is None:
            prefill_s = self.ticket.prefill_tokens / 500 if self.ticket else 0
            if now - answer.started_s > config.first_byte_s + prefill_s:
                self._expire("The engine gave no answer in time.", "engine_timeout")
        elif now - answer.last_live_s > config.idle_stream_s and not answer.paused:
            self._expire("The engine went silent.", "engine_silent")
        if self.expired is None and now - answer.started_s > config.total_s:
            self._expire("The answer took too long.", "total_timeout")
        if self.expired is not None:
            call.close()

    def _expire(self, message: str, code: str) -> None:
        self.expired = EngineTimeout(message, code=code)

    def drain(self) -> None:
        """The process is ending: leave the queue; what runs may finish."""
        if self._granting is not None:
            self.expired = errors.Unavailable(
                "This gateway is being restarted; try again.",
                code="shutting_down",
                retry_after_s=1,
            )
            self.client.bell.ring()
