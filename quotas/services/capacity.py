"""Writes what was measured: runs and samples, publishing and withdrawing, minutes and decisions.

Only these functions write capacity records. A run's state moves along NEXT and nowhere else; each
move is a compare-and-swap, so a run that was stopped and one that ended cannot both win.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import redis
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from quotas.models import (
    CapacityDecision,
    CapacityRun,
    CapacitySample,
    PoolMinute,
    Replica,
    User,
)
from quotas.snapshots.measured import MEASURED, MINUTES, Measured

State = CapacityRun.State
NEXT: Mapping[str, frozenset[str]] = {
    State.PLANNED: frozenset({State.RUNNING, State.VOID, State.PARTIAL, State.FAILED}),
    State.RUNNING: frozenset({State.COMPLETE, State.PARTIAL, State.VOID, State.FAILED}),
    State.COMPLETE: frozenset(),
    State.PARTIAL: frozenset(),
    State.VOID: frozenset(),
    State.FAILED: frozenset(),
}
# A run that has not been heard of for so long has died with its process.
SILENT_S = 60
KEEP_MINUTES_DAYS = 60


# The short form of a run, in the words of the measuring command.
QUICK: Mapping[str, Any] = {
    "lengths": [128, 1024], "concurrencies": [1, 2, 4], "repeats": 3, "answer_tokens": 64,
}  # fmt: skip


def request(
    *,
    replica: Replica,
    requested_by: User | None = None,
    wishes: Mapping[str, Any] | None = None,
    in_s: float = 0.0,
) -> CapacityRun:
    """Plan a run; one at a time per replica. `wishes` change what the full plan measures.

    A run that begins later is announced on the status page until then.
    """
    bury_silent()
    plan: dict[str, Any] = {"wishes": dict(wishes)} if wishes else {}
    if in_s > 0:
        plan["begins_at"] = (timezone.now() + dt.timedelta(seconds=in_s)).isoformat()
    try:
        with transaction.atomic():
            return CapacityRun.objects.create(
                replica=replica,
                replica_name=replica.name,
                pool_name=replica.pool.name,
                requested_by=requested_by,
                plan=plan,
                heard_at=timezone.now(),
            )
    except IntegrityError as error:
        raise ValidationError(f"{replica.name} is being measured already.") from error


def begin(
    *,
    run: CapacityRun,
    plan: Mapping[str, Any],
    fingerprint: Mapping[str, str],
    digest: str,
    steps_total: int,
    duration_s: float,
) -> bool:
    """Start a planned run; False when it was stopped before it began."""
    now = timezone.now()
    wishes = {"wishes": run.plan["wishes"]} if run.plan.get("wishes") else {}
    return _move(
        run,
        State.RUNNING,
        plan={**plan, **wishes},
        fingerprint=dict(fingerprint),
        fingerprint_digest=digest,
        steps_total=steps_total,
        started_at=now,
        heard_at=now,
        expected_end_at=now + dt.timedelta(seconds=duration_s),
    )


def add_sample(
    *,
    run: CapacityRun,
    step: int,
    kind: str,
    prompt_tokens: int,
    concurrency: int,
    repeat: int,
    answers: list[dict[str, Any]],
    steps_done: int,
    expected_end_at: dt.datetime | None = None,
) -> None:
    """Keep one step's raw data and the progress."""
    with transaction.atomic():
        CapacitySample.objects.create(
            run=run,
            step=step,
            kind=kind,
            prompt_tokens=prompt_tokens,
            concurrency=concurrency,
            repeat=repeat,
            answers=answers,
        )
        changes: dict[str, Any] = {"steps_done": steps_done, "heard_at": timezone.now()}
        if expected_end_at is not None:
            changes["expected_end_at"] = expected_end_at
        CapacityRun.objects.filter(pk=run.pk).update(**changes)


def heard(*, run: CapacityRun) -> bool:
    """Note that the run lives; True when somebody asked it to stop."""
    CapacityRun.objects.filter(pk=run.pk).update(heard_at=timezone.now())
    return CapacityRun.objects.filter(pk=run.pk, stop_requested=True).exists()


def end(
    *,
    run: CapacityRun,
    state: str,
    reason: str = "",
    report: Mapping[str, Any] | None = None,
    sentence: str = "",
) -> bool:
    """End a run in one of its end states; False when it had ended already."""
    return _move(
        run,
        state,
        reason=reason,
        report=dict(report or {}),
        sentence=sentence,
        ended_at=timezone.now(),
    )


def _move(run: CapacityRun, state: str, **fields: Any) -> bool:
    before = [old for old, after in NEXT.items() if state in after]
    moved = CapacityRun.objects.filter(pk=run.pk, state__in=before).update(state=state, **fields)
    run.refresh_from_db()
    return moved == 1


def stop(*, run: CapacityRun) -> None:
    """Ask a run to give the card back; what it measured is kept as partial."""
    CapacityRun.objects.filter(pk=run.pk, state__in=CapacityRun.LIVE).update(stop_requested=True)


def bury_silent() -> int:
    """End the runs whose process has died; returns how many."""
    since = timezone.now() - dt.timedelta(seconds=SILENT_S)
    dead = CapacityRun.objects.filter(state__in=CapacityRun.LIVE, heard_at__lt=since)
    return dead.update(
        state=State.FAILED, reason="The measuring process was lost.", ended_at=timezone.now()
    )


def publish(*, run: CapacityRun, by: User | None = None) -> None:
    """Show a complete run's figures to everybody."""
    shown = CapacityRun.objects.filter(
        pk=run.pk, state=State.COMPLETE, published_at__isnull=True
    ).update(published_at=timezone.now(), published_by=by)
    run.refresh_from_db()
    if not shown:
        raise ValidationError("Only a complete run that was not published before can be published.")


def withdraw(*, run: CapacityRun, reason: str, by: User | None = None) -> None:
    """Say that published figures do not hold; they stay visible with date and reason."""
    if not reason.strip():
        raise ValidationError({"reason": "Say why the figures do not hold."})
    done = CapacityRun.objects.filter(
        pk=run.pk, published_at__isnull=False, withdrawn_at__isnull=True
    ).update(withdrawn_at=timezone.now(), withdrawn_by=by, withdrawn_reason=reason.strip())
    run.refresh_from_db()
    if not done:
        raise ValidationError("Only published figures can be withdrawn.")


def published(pool: str) -> CapacityRun | None:
    """Return the newest published run of a pool that was not withdrawn."""
    return (
        CapacityRun.objects.filter(
            pool_name=pool, published_at__isnull=False, withdrawn_at__isnull=True
        )
        .order_by("-published_at")
        .first()
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that two fingerprints do not share; None: not there."""

    name: str
    before: str | None
    after: str | None


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return what differs between two fingerprints, by name."""
    return tuple(
        Difference(name, before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def comparable(run: CapacityRun) -> Iterable[CapacityRun]:
    """Return the complete runs that may stand in one line with this one: same fingerprint."""
    return CapacityRun.objects.filter(
        state=State.COMPLETE, fingerprint_digest=run.fingerprint_digest
    ).exclude(fingerprint_digest="")


# Averages of a minute; a look that did not know a number does not count for it.
_AVERAGED = (
    "slots",
    "held_interactive",
    "held_batch",
    "waiting_interactive",
    "waiting_batch",
    "expected_wait_interactive_s",
    "expected_wait_batch_s",
    "kv_usage",
    "tokens_in_per_s",
    "tokens_out_per_s",
)


def record_minute(row: Mapping[str, Any]) -> None:
    """Keep one minute of a pool as the gateway summed it up; a second write replaces it."""
    fields: dict[str, Any] = {name: row.get(name) for name in _AVERAGED}
    per_s = row.get("preemptions_per_s")
    fields |= {
        "looks": row.get("looks") or 0,
        "preemptions": None if per_s is None else round(60 * per_s),
        "verdict": row.get("verdict") or "unknown",
        "waited_s": row.get("waited_s") or {},
    }
    minute = dt.datetime.fromtimestamp(row["at"], dt.UTC)
    PoolMinute.objects.update_or_create(pool=row["pool"], minute=minute, defaults=fields)


def keep_minutes(store: redis.Redis, *, most: int = 2000) -> int:
    """Move finished minutes from Redis into the books; returns how many.

    They are taken away only after they are kept, so a crash in between writes them twice, which
    changes nothing.
    """
    raw = cast("list[bytes]", store.lrange(MINUTES, 0, most - 1))
    with transaction.atomic():
        for text in raw:
            record_minute(json.loads(text))
    if raw:
        store.ltrim(MINUTES, len(raw), -1)
    return len(raw)


def publish_measured(store: redis.Redis) -> int:
    """Tell the gateways what each replica was measured at last; returns how many replicas."""
    newest = (
        CapacityRun.objects.filter(
            state=State.COMPLETE, replica__isnull=False, withdrawn_at__isnull=True
        )
        .order_by("replica_id", "-ended_at")
        .distinct("replica_id")
        .select_related("replica")
    )
    found = {
        run.replica.public_id: text for run in newest if run.replica and (text := _measured(run))
    }
    with store.pipeline(transaction=True) as pipe:
        pipe.delete(MEASURED)
        if found:
            pipe.hset(MEASURED, mapping=cast("Any", found))
        pipe.execute()
    return len(found)


def _measured(run: CapacityRun) -> str | None:
    """Return a run in the few numbers a watchdog needs, from its shortest prompts."""
    points = run.report.get("points") or []
    shortest = min((p["planned_tokens"] for p in points), default=0)
    decode = [
        (p["concurrency"], p["decode_per_s"]["value"])
        for p in points
        if p["planned_tokens"] == shortest and p["decode_per_s"]
    ]
    prefill = [p["prefill_per_s"]["value"] for p in points if p["prefill_per_s"]]
    if not decode or not prefill:
        return None
    measured = Measured(run.public_id, run.fingerprint, max(prefill), tuple(decode))
    return measured.to_json()


def forget_old_minutes() -> int:
    """Delete minutes older than two months; returns how many."""
    limit = timezone.now() - dt.timedelta(days=KEEP_MINUTES_DAYS)
    return PoolMinute.objects.filter(minute__lt=limit).delete()[0]


def days(pool: str, count: int = 7) -> list[dict[str, Any]]:
    """Return each of the last days of a pool, summed up from its minutes, in local days.

    `kv_usage` is the mean of the fullest hour, `offered_tokens_per_s` the tokens out of the
    busiest hour scaled by what waited beside what ran.
    """
    rows: dict[dt.date, dict[str, Any]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            _DAYS, {"pool": pool, "zone": timezone.get_current_timezone_name(), "days": count}
        )
        names = [column.name for column in cursor.description or ()]
        for values in cursor.fetchall():
            row = dict(zip(names, values, strict=True))
            row["waited_s"] = {}
            rows[row["date"]] = row
        cursor.execute(
            _WAITED, {"pool": pool, "zone": timezone.get_current_timezone_name(), "days": count}
        )
        for date, blocker, seconds in cursor.fetchall():
            rows[date]["waited_s"][blocker] = seconds
    return [rows[date] for date in sorted(rows)]


_DAYS = """
    WITH hours AS (
        SELECT date_trunc('hour', minute, %(zone)s) AS hour,
               avg(kv_usage) AS kv_usage,
               avg(tokens_out_per_s * (1 + coalesce(waiting_interactive, 0)
                   / greatest(coalesce(held_interactive, 0) + coalesce(held_batch, 0), 1)))
                   AS offered,
               sum(preemptions) AS preemptions,
               bool_or(verdict IN ('saturated', 'overloaded')) AS saturated,
               bool_or(verdict = 'overloaded') AS overloaded
        FROM quotas_poolminute
        WHERE pool = %(pool)s AND minute >= date_trunc('day', now(), %(zone)s)
              - make_interval(days => %(days)s - 1)
        GROUP BY 1
    )
    SELECT (hour AT TIME ZONE %(zone)s)::date AS date, max(kv_usage) AS kv_usage,
           max(offered) AS offered_tokens_per_s, sum(preemptions)::int AS preemptions,
           bool_or(saturated) AS saturated, bool_or(overloaded) AS overloaded
    FROM hours GROUP BY 1
"""
_WAITED = """
    SELECT (minute AT TIME ZONE %(zone)s)::date, key, sum(value::float)
    FROM quotas_poolminute, jsonb_each_text(waited_s)
    WHERE pool = %(pool)s AND minute >= date_trunc('day', now(), %(zone)s)
          - make_interval(days => %(days)s - 1)
    GROUP BY 1, 2
"""


def record_decision(
    *,
    pool: str,
    date: dt.date,
    blocker: str,
    action: str,
    reason: str,
    arithmetic: str,
    replicas_needed: int | None,
) -> CapacityDecision:
    """Keep the day's decision; the last one of a day stands."""
    decision, _ = CapacityDecision.objects.update_or_create(
        pool=pool,
        date=date,
        defaults={
            "blocker": blocker,
            "action": action,
            "reason": reason,
            "arithmetic": arithmetic,
            "replicas_needed": replicas_needed,
        },
    )
    return decision
