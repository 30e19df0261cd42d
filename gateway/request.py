"""One request's life once it is understood: admit -> forward -> release -> record.

Rule 1: a lease is given back exactly once, at the engine's end, by `_settle`; no `await` stands
between taking and giving back, so no cancellation can come between either.
Rule 2: a client that leaves is noticed in every state: queued -> cancelled, granted -> released,
running -> the engine's connection is closed.
Rule 3: a second try only when the client has seen no byte that came from an engine, once, and on
another replica. An engine that says "busy" (429, 503) spends no try: the grant is put back.
"""

from __future__ import annotations

import asyncio
import logging

from gateway import aftermath, dispatch, errors, intake, relay
from gateway.answer import Answer
from gateway.client import Client
from gateway.core import affinity, fields
from gateway.core.fields import Kind
from gateway.core.types import Grant, Outcome, Settlement, Ticket
from gateway.errors import ClientGone, EngineFailed, EngineTimeout, GatewayError
from gateway.holding import refuse_while_measured
from gateway.intake import Order
from gateway.ledger.interface import Refused
from gateway.policies import write_key
from gateway.quota import Standings
from gateway.record import Story
from gateway.services import Services
from gateway.upstream import Closed, ConnectFailed
from quotas.snapshots.directory import ReplicaSnapshot

log = logging.getLogger("fairway.request")

MOST_TRIES = 2
PREFILL_PER_S = 500  # tokens; slower than any engine worth its slot, for time limits only


async def serve(services: Services, kind: Kind, path: str, client: Client) -> None:
    """Serve one request to an engine, whatever comes."""
    if services.draining:
        raise errors.shutting_down()
    order = await intake.take(services, kind, path, client)
    refuse_while_measured(services.fleet, order.pool.name)
    await Request(services, client, order).run()


class Request:
    """One understood request, until its record is written."""

    def __init__(self, services: Services, client: Client, order: Order) -> None:
        self.services = services
        self.client = client
        self.order = order
        self.story = Story(order, client)
        self.quotas = Standings(order.reservation)
        self.is_queued = False
        self._granting: asyncio.Future[Grant] | None = None
        self._tries = 0
        self._recorded = False

    async def run(self) -> None:
        """Serve it; nothing of it is left when this returns."""
        live = self.services.live
        live.add(self)
        # The line knows the request and not the other way round: without rings of references a
        # finished request is freed at once, and its memory is used again while it is warm.
        line = relay.Line(self)
        try:
            await self._serve(line)
        except ClientGone:
            pass
        except GatewayError as error:
            await self._refuse(line, error)
        except asyncio.CancelledError:
            self.story.expired = errors.shutting_down()
            raise
        except Exception:
            log.exception("request %s failed", self.client.request_id)
            await self._refuse(line, GatewayError("Something went wrong in the gateway."))
        finally:
            self._end()
            live.discard(self)

    async def _serve(self, line: relay.Line) -> None:
        self.client.watch()
        ticket = self._ticket()
        if self.order.caller.end_user:
            write_key(self.services.ledger, self.order.caller.key, self.order.caller.user_id)
        granting = self.services.ledger.admit(ticket)
        self.quotas.ask(self.services.ledger)
        grant = await self._wait_for(line, granting)
        while True:
            answer = self._start(grant)
            if await line.forward(answer):
                return
            grant = await self._again(line, answer, grant)

    # Admit

    def _ticket(self) -> Ticket:
        order, services = self.order, self.services
        caller, session, pool = order.caller, order.session, order.pool.name
        names = [replica.replica_id for replica in services.directory.replicas(pool)]
        cached = services.estimator.cached_tokens(session) if session else 0
        output = services.estimator.output_tokens(caller.user_id, pool, order.asked.max_tokens)
        return Ticket(
            ticket_id=self.client.request_id,
            key_id=caller.key.key_id,
            user_id=caller.user_id,
            service_class=caller.service_class,
            pool=pool,
            weight=order.asked.weight,
            prefill_tokens=max(1, order.prompt_tokens - cached),
            output_tokens=output * order.asked.weight if order.kind in fields.GENERATES else 0,
            replica_order=affinity.rendezvous(session, names) if session else tuple(names),
            session=session,
            ttl_ms=order.ttl_ms(services.config),
            place=order.place,
            fingerprint=order.fingerprint,
            charges=order.reservation.charges,
            group=order.pool.reserving(caller.key.group_id),
            # With the memory ledger nobody would be left to write it.
            interrupted=self.story.interrupted() if services.config.ledger == "redis" else b"",
        )

    async def _wait_for(self, line: relay.Line, granting: asyncio.Future[Grant]) -> Grant:
        """Wait in line; raises when it was turned away, put out of the queue, or left alone."""
        self._granting = granting
        granting.add_done_callback(self._spoken)
        if not granting.done():
            self.is_queued = True
            await line.queue(granting)
            self.is_queued = False
        if self.client.gone or self.story.expired is not None:
            self._abandon(granting)
            raise self.story.expired or ClientGone
        self._granting = None
        try:
            grant = granting.result()
        except Refused as refused:
            raise self.quotas.refusal(refused) or errors.from_refused(refused) from None
        self.story.grant = grant
        return grant

    def _spoken(self, granting: asyncio.Future[Grant]) -> None:
        if not granting.cancelled():
            granting.exception()  # looked at, so that asyncio does not complain
        self.client.bell.ring()

    def _abandon(self, granting: asyncio.Future[Grant]) -> None:
        """Leave the queue; a grant that is on its way here all the same is given back."""
        self._granting = None
        ledger, ticket_id = self.services.ledger, self.client.request_id
        outcome = Outcome.EVICTED_TIMED_OUT
        if self.client.gone or isinstance(self.story.expired, errors.Stopped):
            outcome = Outcome.EVICTED_CLIENT_GONE
        elif self.services.draining:
            outcome = Outcome.EVICTED_SHUTTING_DOWN
        elif self.story.expired is not None:
            outcome = self.story.expired.outcome or outcome
        if granting.done() and not granting.cancelled() and granting.exception() is None:
            # Granted in the very moment: it holds a lease, and the lease brings the record.
            self._recorded = True
            record = self.story.record(outcome)
            ledger.release(ticket_id, Settlement(outcome, 0, 0, 0, record))
            aftermath.count(self.story, outcome, self.services.metrics)
            return
        ledger.cancel(ticket_id, outcome)
        if not isinstance(self.story.expired, errors.Rejected):
            self._evicted(outcome)

    def _evicted(self, outcome: Outcome) -> None:
        """Write the record of a ticket that left the queue unserved."""
        if not self._recorded:
            self._recorded = True
            self.services.outbox.append(self.story.record(outcome))
            aftermath.count(self.story, outcome, self.services.metrics)

    # Forward

    def _start(self, grant: Grant) -> Answer:
        """Send the request to the replica of the grant."""
        services, client, order = self.services, self.client, self.order
        self._tries += 1
        replica = services.directory.replica(grant.replica_id)
        assembles = replica is not None and dispatch.must_assemble(order, replica)
        answer = self.story.answer = Answer(
            order.kind,
            client.bell,
            services.buffers,
            client.loop.time,
            drop_usage=not order.asked.include_usage and not assembles,
            keep_chunks=assembles,
            streams=order.asked.stream or assembles,
            on_content=self._content_came,
            on_end=self._answer_ended,
        )
        if replica is None:  # taken out of the books a moment ago
            answer.lost(ConnectFailed("the replica was removed"))
        else:
            self._send(answer, grant, replica)
        return answer

    def _send(self, answer: Answer, grant: Grant, replica: ReplicaSnapshot) -> None:
        services, client = self.services, self.client
        prefill_s = self.order.prompt_tokens / PREFILL_PER_S
        activity = services.fleet.activity(replica.replica_id)
        activity.began(client.request_id, client.loop.time(), prefill_s)
        request = dispatch.http_request(
            self.order,
            grant,
            replica,
            config=services.config,
            headers=client.headers,
            request_id=client.request_id,
        )
        answer.call = services.upstream.send(dispatch.target_of(replica), request, answer)

    def _content_came(self, is_first: bool) -> None:
        grant = self.story.grant
        if grant is None:
            return
        activity, now = self.services.fleet.activity(grant.replica_id), self.client.loop.time()
        if is_first:
            activity.first_content(self.client.request_id, now)
            self.services.ledger.prefill_done(self.client.request_id)
        else:
            activity.moved(now)

    def _answer_ended(self, answer: Answer) -> None:
        """The engine has ended: tell the fleet, and give the lease back unless it tries again."""
        grant = self.story.grant
        if grant is None or answer is not self.story.answer:
            return
        fleet = self.services.fleet
        activity = fleet.activity(grant.replica_id)
        activity.ended(self.client.request_id)
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
            fleet.noticed(grant.replica_id)
        if answer.status == 200 and (answer.passed or answer.error is None):
            self._settle()

    async def _again(self, line: relay.Line, answer: Answer, grant: Grant) -> Grant:
        """Go back into the queue with the old rank after an answer that may be tried elsewhere."""
        is_busy = answer.status in (429, 503)
        self.story.grant = None
        if is_busy:
            self._tries -= 1
            self.services.metrics.put_back.inc()
            self.services.fleet.noticed(grant.replica_id)
        else:
            self.services.metrics.retries.inc()
        ledger = self.services.ledger
        answer.forget()
        put_back = ledger.put_back(self.client.request_id, avoid=grant.replica_id)
        again = await self._wait_for(line, put_back)
        is_same = again.replica_id == grant.replica_id
        if is_same and not is_busy and not isinstance(answer.error, ConnectFailed):
            # Nobody else is up, and what broke this replica once may do so again.
            raise self.failure(answer)
        return again

    def may_try_again(self, answer: Answer) -> bool:
        """Tell whether the request may go back into the queue."""
        if self.story.expired is not None:
            return False
        if answer.status in (429, 503) or isinstance(answer.error, ConnectFailed):
            return True  # the engine did nothing for it
        is_failure = answer.error is not None or answer.status >= 500
        return is_failure and self._tries < MOST_TRIES and self._is_another_up()

    def _is_another_up(self) -> bool:
        """Is there a replica to try that has not just failed this request?"""
        grant, now = self.story.grant, self.client.loop.time()
        return any(
            replica.snapshot.pool == self.order.pool.name
            and (grant is None or replica.snapshot.replica_id != grant.replica_id)
            and replica.observation(now).accepts
            for replica in self.services.fleet.replicas()
        )

    def failure(self, answer: Answer) -> GatewayError:
        """Say what went wrong with the engine."""
        if self.story.expired is not None:
            return self.story.expired
        if answer.error is not None:
            return EngineFailed("The engine broke off.", code="engine_unreachable")
        return relay.engine_error(answer)

    # Release and record

    def _settle(self) -> None:
        """Give the lease back with what was used; only the first call does anything."""
        grant, story, services = self.story.grant, self.story, self.services
        if grant is None or self._recorded:
            return
        self._recorded = True
        outcome = story.outcome()
        usage = story.answer.usage if story.answer is not None else None
        settlement = Settlement(
            outcome=outcome,
            prompt_tokens=story.prompt_tokens(),
            cached_tokens=(usage.cached_tokens or 0) if usage else 0,
            completion_tokens=story.completion_tokens(),
            record=story.record(outcome),
        )
        replica = services.directory.replica(grant.replica_id)
        release, linger_s = services.ledger.release, aftermath.linger_s(story, replica)
        if linger_s:
            self.client.loop.call_later(linger_s, release, self.client.request_id, settlement)
        else:
            release(self.client.request_id, settlement)
        aftermath.learn(story, services.estimator)
        aftermath.count(story, outcome, services.metrics)

    # Ends

    async def _refuse(self, line: relay.Line, error: GatewayError) -> None:
        """Tell the client what is wrong, in the shape it expects at this moment."""
        self.story.status = self.story.status or error.status
        if error.outcome is not None:
            self._evicted(error.outcome)
        elif self.story.grant is None and not self._recorded:
            self.services.metrics.rejected.labels(error.code).inc()
            self.services.outbox.rejected(self.order.caller.key.key_id, error.code)
        await line.tell(error)

    def _end(self) -> None:
        """Leave nothing behind, whichever way it ended."""
        if self._granting is not None:
            self._abandon(self._granting)
        answer = self.story.answer
        if answer is not None and not answer.ended and answer.call is not None:
            answer.call.close()
        self._settle()
        if answer is not None:
            answer.forget()
        self.client.close()

    def tick(self, now: float) -> None:
        """Hold the request against the clock; called twice a second."""
        client, answer = self.client, self.story.answer
        stalled_s = 0.0 if client.sending_since is None else now - client.sending_since
        if stalled_s > self.services.config.stall_s:
            client.gone = True
            client.cut()
        elif answer is not None and not answer.ended and answer.call is not None:
            self.story.expired = self.story.expired or self._passed_limit(answer, now)
            if self.story.expired is not None:
                answer.call.close()
        client.bell.ring()

    def _passed_limit(self, answer: Answer, now: float) -> GatewayError | None:
        config, running_s = self.services.config, now - answer.started_s
        if running_s > config.total_s:
            return EngineTimeout("The answer took too long.", code="total_timeout")
        if not answer.is_asked_to_stream:
            return None  # a plain answer comes as one piece at its end
        if answer.first_content_s is None:
            prefill_s = self.order.prompt_tokens / PREFILL_PER_S
            if running_s > config.first_byte_s + prefill_s:
                return EngineTimeout("The engine gave no answer in time.", code="engine_timeout")
        elif now - answer.last_live_s > config.idle_stream_s and not answer.paused:
            return EngineTimeout("The engine went silent.", code="engine_silent")
        return None

    def stop(self, error: GatewayError) -> None:
        """End it now, wherever it is: out of the queue, or off the engine."""
        self.story.expired = self.story.expired or error
        answer = self.story.answer
        if answer is not None and not answer.ended and answer.call is not None:
            answer.call.close()
        self.client.bell.ring()

    def leave_queue(self, error: GatewayError) -> None:
        """Leave the queue with this answer; what runs may finish."""
        if self._granting is not None:
            self.story.expired = error
            self.client.bell.ring()
