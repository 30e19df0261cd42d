"""Whether a request whose answer failed early may be sent again, and what to say if not."""

from __future__ import annotations

from gateway.answer import Answer, engine_error
from gateway.errors import EngineFailed, GatewayError
from gateway.fleet.health import Condition
from gateway.fleet.prober import Fleet
from gateway.record import Story
from gateway.upstream import ConnectFailed

BUSY = (429, 503)  # what an engine says that takes no more for now


def is_free(answer: Answer) -> bool:
    """Did the engine do nothing for it, so that sending it again costs nobody anything?"""
    return answer.status in BUSY or isinstance(answer.error, ConnectFailed)


def is_failure(answer: Answer) -> bool:
    """Did the engine or the way to it break?"""
    return answer.error is not None or answer.status >= 500 or answer.status == 401


def is_stranded(story: Story, fleet: Fleet, now: float) -> bool:
    """Has its replica gone down before it answered anything, while another one is up?"""
    if story.grant is None or (story.answer is not None and story.answer.passed):
        return False
    replica = fleet.replica(story.grant.replica_id)
    if replica is None or replica.probes.condition is not Condition.DOWN:
        return False
    return is_another_up(fleet, replica.snapshot.pool, replica.snapshot.replica_id, now)


def is_another_up(fleet: Fleet, pool: str, but: str, now: float) -> bool:
    """Is there a replica to try that has not just failed this request?"""
    return any(
        replica.snapshot.pool == pool
        and replica.snapshot.replica_id != but
        and replica.observation(now).accepts
        for replica in fleet.replicas()
    )


def failure(answer: Answer, expired: GatewayError | None) -> GatewayError:
    """Say what went wrong with the engine; `expired` is a limit of ours that was passed."""
    if expired is not None:
        return expired
    if answer.error is not None:
        return EngineFailed("The engine broke off.", code="engine_unreachable")
    return engine_error(answer)
