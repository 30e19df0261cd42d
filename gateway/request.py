"""One request's life once it is understood: admit -> forward -> release -> record.

Driven by what happens to it: the ledger speaks, the engine answers, the client leaves or takes
more, time passes. No task waits for it, so no cancellation can come between any two steps.

Rule 1: a lease is given back exactly once, at the engine's end, by `_settle`.
Rule 2: a client that leaves is noticed in every state: queued -> cancelled, granted -> released,
running -> the engine's connection is closed.
Rule 3: a second try only when the client has seen no byte that came from an engine, once, and on
another replica. An engine that says "busy" (429, 503), or is not there, spends no try.
Rule 4: what goes wrong in a step ends this request and no other.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from gateway import aftermath, dispatch, errors, retry, tasks, timeouts
from gateway.answer import Answer
from gateway.client import Client
from gateway.core.types import Grant, Outcome, QuotaState, Standing
from gateway.errors import GatewayError
from gateway.intake import Order
from gateway.ledger.interface import Refused
from gateway.ledger.waiting import Waiter
from gateway.policies import write_key
from gateway.quota import Standings
from gateway.record import Story
from gateway.relay import Line
from gateway.services import Services
from gateway.ticket import ticket_of
from gateway.upstream import ConnectFailed

log = logging.getLogger("fairway.request")

MOST_TRIES = 2
PATIENCE_CHECK_S = 0.1  # a request still queued then is asked how long it would wait
Rest = ParamSpec("Rest")
_Step = Callable[Concatenate["Request", Rest], None]


def _step(method: _Step[Rest]) -> _Step[Rest]:
    """Make a method one that anything may call: what it raises is told to the client."""

    def step(request: Request, /, *args: Rest.args, **kwargs: Rest.kwargs) -> None:
        if request.is_over:
            return
        try:
            method(request, *args, **kwargs)
        except Exception as error:
            request.broke(error)

    return functools.wraps(method)(step)


class Request(Waiter):
    """One understood request, until its record is written."""

    __slots__ = (
        "_again", "_line", "_recorded", "_tries", "_waits", "client", "is_over", "order", "quotas",
        "services", "story",
    )  # fmt: skip

    def __init__(self, services: Services, client: Client, order: Order) -> None:
        self.services = services
        self.client = client
        self.order = order
        self.story = Story(order, client)
        self.quotas = Standings(order.reservation)
        self.is_over = False
        self._line = Line(client, order, self.story, self.quotas, services.config)
        self._waits = False  # for the ledger's word
        self._again: tuple[Answer, str] | None = None  # what was tried before, and where
        self._tries = 0
        self._recorded = False

    @property
    def request_id(self) -> str:
        """Return its id."""
        return self.client.request_id

    @property
    def pool_name(self) -> str:
        """Return the pool it is for."""
        return self.order.way.pool_name

    # Admit

    def begin(self) -> None:
        """Ask for a slot."""
        try:
            self._admit()
        except Exception as error:  # a step like the others, without the price of a wrapper
            self.broke(error)

    def _admit(self) -> None:
        services, client, order = self.services, self.client, self.order
        services.live.add(self)
        client.on_left, client.on_room = self.left, self.pump
        if client.gone:
            self.left()
            return
        if order.caller.end_user:
            write_key(services.ledger, order.caller.key, order.caller.user_id)
        self._waits = True
        services.ledger.admit(ticket_of(services, client, order, self.story), self)
        if self._waits and order.patience_s is not None:
            client.loop.call_later(PATIENCE_CHECK_S, self._ask_patience)

    def stands(self, states: tuple[QuotaState, ...]) -> None:
        """Keep where the limits stand, for the headers of whatever is answered."""
        self.quotas.states = states

    def granted(self, grant: Grant) -> None:
        """Go on with a slot."""
        self._waits = False
        self.story.grant = grant
        try:
            if self._again is not None:
                self._check_elsewhere(grant)
            self._start(grant)
        except Exception as error:
            self.broke(error)

    def refused(self, refused: Refused) -> None:
        """Tell the client why the ledger said no."""
        self._waits = False
        try:
            raise self.quotas.refusal(refused) or errors.from_refused(refused)
        except Exception as error:
            self.broke(error)

    def _abandon(self) -> None:
        """Leave the queue; a grant that is on its way here all the same is given back."""
        self._waits = False
        outcome = self.story.evicted_as(is_draining=self.services.draining)
        self.services.ledger.cancel(self.client.request_id, outcome)
        if not isinstance(self.story.expired, errors.Rejected):
            self._evicted(outcome)

    def _evicted(self, outcome: Outcome) -> None:
        """Write the record of a ticket that left the queue unserved."""
        if not self._recorded:
            self._recorded = True
            self.services.outbox.append(self.story.record(outcome))
            aftermath.count(self.story, outcome)

    # Forward

    def _start(self, grant: Grant) -> None:
        """Send the request to the replica of the grant."""
        services, client, order = self.services, self.client, self.order
        self._tries += 1
        leg = dispatch.leg_of(services, order, grant.replica_id)
        activity = services.fleet.activity(grant.replica_id) if leg is None else leg.activity
        assembles = leg is not None and dispatch.must_assemble(order, leg)
        answer = self.story.answer = Answer(
            order.kind,
            self,
            services.buffers,
            client.loop,
            activity,
            drop_usage=not order.asked.include_usage and not assembles,
            keep_chunks=assembles,
            streams=order.asked.stream or assembles,
            names_tier="" if assembles else order.names_tier,
            counts=dispatch.counts(order, leg),
        )
        if leg is None:  # taken out of the books a moment ago
            answer.lost(ConnectFailed("the replica was removed"))
            self.pump()
            return
        activity.began(client.request_id, client.loop.time(), order.prefill_s)
        request = dispatch.http_request(
            order, grant, leg, headers=client.headers, request_id=client.request_id
        )
        answer.call = services.upstream.send(leg.target, request, answer)

    def content_came(self) -> None:
        """The first of the answer itself came: its prompt was read."""
        answer = self.story.answer
        if answer is not None:
            answer.activity.first_content(self.client.request_id, answer.last_live_s)
            self.services.ledger.prefill_done(self.client.request_id)

    def answer_ended(self, answer: Answer) -> None:
        """The engine has ended: tell the fleet, and give the lease back unless it tries again."""
        grant, activity = self.story.grant, answer.activity
        if grant is None or answer is not self.story.answer:
            return
        activity.ended(self.client.request_id)
        if aftermath.tell_replica(activity, answer):
            self.services.fleet.noticed(grant.replica_id)
        if answer.status == 200 and (answer.passed or answer.error is None):
            self._settle()

    def pump(self) -> None:
        """Pass on what can be passed on now, and end when all of it was."""
        answer = self.story.answer
        if self.is_over or answer is None or self._waits:
            return
        try:
            self._pump(answer)
        except Exception as error:  # a step like the others, without the price of a wrapper
            self.broke(error)

    def _pump(self, answer: Answer) -> None:
        if not self._line.pump(answer):
            if not self._may_try_again(answer):
                raise retry.failure(answer, self.story.expired)
            self._try_again(answer)
        elif self.client.finished or (answer.ended and self.client.gone):
            self._end()

    def _may_try_again(self, answer: Answer) -> bool:
        grant, fleet = self.story.grant, self.services.fleet
        if grant is None or self.story.expired is not None:
            return False
        # One that died on a kept connection was sent twice already.
        tries = self._tries + (answer.call is not None and answer.call.resent)
        now = self.client.loop.time()
        return retry.is_free(answer) or (
            retry.is_failure(answer)
            and tries < MOST_TRIES
            and retry.is_another_up(fleet, self.pool_name, grant.replica_id, now)
        )

    def _try_again(self, answer: Answer) -> None:
        """Go back into the queue with the old rank."""
        grant = self.story.grant
        if grant is None:
            return
        self._tries -= retry.is_free(answer)  # then it was none
        if answer.status in retry.BUSY:
            self.services.metrics.put_back.inc()
            self.services.fleet.noticed(grant.replica_id)
        else:
            self.services.metrics.retries.inc()
        self.story.grant = None
        self._again = (answer, grant.replica_id)
        self._waits = True
        self.services.ledger.put_back(self.client.request_id, self, avoid=grant.replica_id)

    def _check_elsewhere(self, grant: Grant) -> None:
        """Do not go where it broke: nobody else is up, and it may break there again."""
        answer, before = self._again  # type: ignore[misc]  # only called with one
        self._again = None
        failure = retry.failure(answer, self.story.expired)
        answer.forget()
        if grant.replica_id == before and not retry.is_free(answer):
            raise failure

    # Release and record

    def _settle(self) -> None:
        """Give the lease back with what was used; only the first call does anything."""
        grant, story, services = self.story.grant, self.story, self.services
        if grant is None or self._recorded:
            return
        self._recorded = True
        outcome = story.outcome()
        settlement = aftermath.settlement(story, outcome)
        ledger, ticket_id = services.ledger, self.client.request_id
        if linger_s := aftermath.linger_s(story, services.directory):
            release = functools.partial(ledger.release, ticket_id, settlement)
            services.fleet.linger(grant.replica_id, linger_s, release)
        else:
            ledger.release(ticket_id, settlement)
        aftermath.learn(story, services.estimator)
        aftermath.count(story, outcome)

    # Ends

    def left(self) -> None:
        """The client has gone."""
        if not self.is_over:
            self._end()

    def broke(self, error: Exception) -> None:
        """Tell the client what a step has raised."""
        if isinstance(error, Refused):
            error = errors.from_refused(error)
        elif not isinstance(error, GatewayError):
            log.error("request %s failed", self.client.request_id, exc_info=error)
            error = GatewayError("Something went wrong in the gateway.")
        self.refuse(error)

    def refuse(self, error: GatewayError) -> None:
        """Tell the client what is wrong, in the shape it expects at this moment, and end."""
        self.story.status = self.story.status or error.status
        if self._waits:
            self._abandon()
        if error.outcome is not None:
            self._evicted(error.outcome)
        elif self.story.grant is None and not self._recorded:
            self.services.metrics.rejected.labels(error.code).inc()
            self.services.outbox.rejected(self.order.caller.key.key_id, error.code)
        try:
            self._line.tell(error)
        finally:
            self._end()

    def _end(self) -> None:
        """Leave nothing behind, whichever way it ended."""
        self.is_over = True
        self.services.live.discard(self)
        client, answer = self.client, self.story.answer
        client.on_left = client.on_room = None  # the ring that would keep both alive
        if self._waits:
            self._abandon()
        if answer is not None and not answer.ended and answer.call is not None:
            answer.call.close()
        self._settle()
        if answer is not None:
            answer.forget()
        if not client.finished and not client.gone:
            client.cut()

    # Time, and others' wishes

    @_step
    def tick(self, now: float) -> None:
        """Hold the request against the clock; called twice a second."""
        client, answer, services = self.client, self.story.answer, self.services
        if (since_s := client.full_since_s) is not None and now - since_s > services.config.stall_s:
            client.cut()
        elif answer is not None and not answer.ended and answer.call is not None:
            passed = timeouts.passed(answer, self.order, services.config, now)
            if passed is not None:
                self.stop(passed)
            elif retry.is_stranded(self.story, services.fleet, now):
                answer.call.close()  # and is tried again elsewhere, unless this was the last try
        if not self.is_over and self._line.is_comment_due(now):
            tasks.start(client.loop, self._keep_alive())

    async def _keep_alive(self) -> None:
        lookout = self.services.lookout
        self._comment(await lookout.standing(self.request_id) if self._waits else None)

    @_step
    def _comment(self, standing: Standing | None) -> None:
        now = self.client.loop.time()
        if self._line.is_comment_due(now):  # unless something came meanwhile
            self._line.keep_alive(now, standing)

    def _ask_patience(self) -> None:
        if self._waits and not self.is_over:
            tasks.start(self.client.loop, self._check_patience())

    async def _check_patience(self) -> None:
        """Refuse at once what the client would not wait for and could not be kept waiting."""
        order = self.order
        if order.patience_s is None or order.is_kept_alive(self.services.config):
            return
        standing = await self.services.lookout.standing(self.request_id)
        wait_ms = None if standing is None else standing.expected_wait_ms
        if wait_ms is not None and wait_ms / 1000 > order.patience_s:
            self.leave_queue(errors.wait_exceeds(wait_ms / 1000, order.patience_s))

    def stop(self, error: GatewayError) -> None:
        """End it now, wherever it is: out of the queue, or off the engine."""
        self.story.expired = self.story.expired or error
        self.leave_queue(self.story.expired)
        answer = self.story.answer
        if answer is not None and not answer.ended and answer.call is not None:
            answer.call.close()

    @_step
    def leave_queue(self, error: GatewayError) -> None:
        """Leave the queue with this answer; what runs may finish."""
        if self._waits:
            self.story.expired = error
            raise error
