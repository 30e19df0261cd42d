"""What this moment looks like: JSON for the portal's status page and for `manage.py queue`."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import orjson

from gateway.core.types import Holding, LedgerView, ServiceClass, Standing
from gateway.services import Services
from quotas.snapshots.live import Live, QueuedLive, RunningLive

ANSWER_S = 1.0  # the portal waits a second and a half


async def live(services: Services) -> tuple[int, bytes]:
    """Return a status and `quotas.snapshots.live.Live` as JSON.

    While nobody can say who runs and who waits the status is 503: whoever does not read
    `queue_known` must not take an unknown queue for an empty one.
    """
    view = await services.lookout.picture(ANSWER_S)
    is_known = view is not None
    if view is None:
        view = LedgerView(0, False, (), (), {}, {})
    held: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for holding in view.running:
        is_batch = holding.service_class is ServiceClass.BATCH
        held[holding.replica_id][is_batch] += holding.weight
    looked_at = services.lookout.looked_at
    picture = Live(
        at=looked_at if is_known else time.time(),
        open=view.open,
        engines=services.fleet.engines({name: (a, b) for name, (a, b) in held.items()}),
        queued=tuple(_queued(standing) for standing in view.queued),
        running=tuple(_running(holding) for holding in view.running),
        expected_wait_s=_newcomer_waits(services, view),
        batch_limit=dict(view.batch_limit),
        borrowed=dict(view.borrowed),
        ledger=_ledger_words(view, is_known=is_known),
        verdicts=services.watcher.current(),
        waited_s=services.watcher.waited_s,
        queue_known=is_known,
        queue_at=looked_at or None,
        worker_at=services.watcher.worker_at,
    )
    return (200 if is_known else 503), orjson.dumps(picture)


def _ledger_words(view: LedgerView, *, is_known: bool) -> str:
    if not is_known:
        return "away: the scheduler's Redis does not answer"
    return "ok" if view.open else "closed for starts after a loss of Redis"


def _running(holding: Holding) -> RunningLive:
    return RunningLive(
        ticket_id=holding.ticket_id,
        key_id=holding.key_id,
        user_id=holding.user_id,
        service_class=holding.service_class,
        pool=holding.pool,
        replica_id=holding.replica_id,
        weight=holding.weight,
        running_s=holding.running_ms / 1000,
    )


def _queued(standing: Standing) -> QueuedLive:
    wait = standing.expected_wait_ms
    return QueuedLive(
        ticket_id=standing.ticket_id,
        key_id=standing.key_id,
        user_id=standing.user_id,
        service_class=standing.service_class,
        pool=standing.pool,
        position=standing.position,
        queued_s=standing.queued_ms / 1000,
        effective_priority_s=standing.effective_priority_ms / 1000,
        blocker=standing.blocker,
        expected_wait_s=None if wait is None else wait / 1000,
    )


def _newcomer_waits(services: Services, view: LedgerView) -> dict[str, dict[str, float | None]]:
    waits: dict[str, dict[str, float | None]] = {}
    for pool in services.directory.pools():
        of_pool = view.newcomer_wait_ms.get(pool.name, {})
        waits[pool.name] = {
            service_class.value: _seconds(of_pool.get(service_class.value))
            for service_class in ServiceClass
        }
    return waits


def _seconds(value_ms: int | None) -> float | None:
    return None if value_ms is None else value_ms / 1000


def standing_json(standing: Standing) -> dict[str, Any]:
    """Return what the owner of a waiting request is shown."""
    wait = standing.expected_wait_ms
    starts = standing.ageing_starts_ms
    return {
        "request_id": standing.ticket_id,
        "model": standing.pool,
        "service_class": standing.service_class.value,
        "position": standing.position,
        "queued_s": standing.queued_ms / 1000,
        "effective_priority_s": standing.effective_priority_ms / 1000,
        "ageing_starts": None if starts is None else starts / 1000,
        "blocker": standing.blocker.value,
        "expected_wait_s": None if wait is None else wait / 1000,
    }
