"""The public status page, its JSON, and the live parts that pages fetch again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.announcements import models as announcements
from portal.batches.models import BatchJob
from portal.batches.states import SENDING
from portal.status import history, measured, reading, shapes, source, week
from quotas import reserved
from quotas.models import CapacityRun
from quotas.services import announced


def reading_for(request: HttpRequest) -> shapes.Reading:
    """Return this moment for the one who reads the page."""
    reader_id = str(request.user.pk) if request.user.is_authenticated else ""
    return reading.read(source.read(), reader_id=reader_id, secret=settings.SECRET_KEY)


def live_answer(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """Return a part of a page that is fetched again; unchanged parts cost 304 and no bytes."""
    response = render(request, template, context)
    response["Cache-Control"] = "private, no-cache"
    return response


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show what is true now, what was measured, and what is planned, to anybody."""
    card = reading_for(request)
    is_week = request.GET.get("range") == "7d"
    past = _past(card, is_week=is_week)
    context = {"section": "status", "card": card, "is_week": is_week, **past}
    return render(request, "status/page.html", context)


def _past(card: shapes.Reading, *, is_week: bool) -> dict[str, Any]:
    """Return what stands below the live part; it comes from the books alone."""
    now, newest = timezone.now(), _published()
    slots = {pool.name: pool.slots or 0 for pool in card.pools}
    names = list(slots) or list(newest)
    days = history.days(names[0], now) if names else []
    chart = history.last_week if is_week else history.last_day
    return {
        "measured": [
            measured.of_run(
                newest[name],
                slots.get(name) or int(newest[name].fingerprint.get("slots") or 0),
                _changed(card, newest[name]),
                week.reached(name, now),
            )
            for name in names
            if name in newest
        ],
        "reserved": reserved.running_and_coming(now),
        "events": announcements.planned_and_past(now),
        "runs": announced.runs(now=now),
        "stalled_jobs": _stalled_jobs(now),
        "withdrawn": announced.withdrawn(now=now),
        "days": days,
        "day_bands": history.day_bands(days),
        "day_counts": dict(Counter(day.state for day in days)),
        "day": chart(names[0], now) if names else None,
        "week": week.usual(names[0], now) if names else None,
    }


def _stalled_jobs(now: datetime) -> int:
    """Return how many batch jobs have not finished a line for too long."""
    before = now - timedelta(seconds=settings.BATCH_STALLED_AFTER_S)
    jobs = BatchJob.objects.annotate(since=Coalesce("last_line_at", "created_at"))
    return jobs.filter(state__in=SENDING, since__lt=before).count()


def _published() -> dict[str, CapacityRun]:
    """Return each model's newest published run that was not withdrawn."""
    runs = CapacityRun.objects.filter(published_at__isnull=False, withdrawn_at=None)
    return {run.pool_name: run for run in runs.order_by("published_at")}


def _capacity_json(newest: dict[str, CapacityRun]) -> list[dict[str, Any]]:
    """Return what was measured and published, for programs."""
    return [
        {
            "model": name,
            "engine": run.replica_name,
            "sentence": run.sentence,
            "measured_at": _text(run.ended_at),
            "fingerprint_digest": run.fingerprint_digest,
            "report": run.report,
            "raw": f"{settings.PUBLIC_URL}{reverse('capacity-raw', args=[run.public_id])}",
        }
        for name, run in sorted(newest.items())
    ]


def _changed(card: shapes.Reading, run: CapacityRun) -> tuple[str, ...]:
    """Return the settings of the measured engine that are not those of the run."""
    changed = (e.live.settings_changed for e in card.engines if e.live.name == run.replica_name)
    return next(changed, ())


@require_safe
def live_part(request: HttpRequest) -> HttpResponse:
    """Return the live part of the status page."""
    return live_answer(request, "status/live.html", {"card": reading_for(request)})


@require_safe
def card_line(request: HttpRequest) -> HttpResponse:
    """Return the inside of the card line."""
    return live_answer(request, "includes/card_line.html", {"card": reading_for(request)})


@require_safe
def as_json(request: HttpRequest) -> JsonResponse:
    """Return the status for programs: no people, nothing unknown written as a number."""
    card = reading.read(source.read(), reader_id="", secret=settings.SECRET_KEY)
    books = {
        "batch_jobs_stalled": _stalled_jobs(timezone.now()),
        "capacity": _capacity_json(_published()),
    }
    response = JsonResponse({**status_json(card), **books})
    response["Cache-Control"] = "public, max-age=1"
    response["Access-Control-Allow-Origin"] = "*"
    return response


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def status_json(card: shapes.Reading) -> dict[str, Any]:
    """Return the reading without anything that tells people apart."""
    return {
        "state": card.state,
        "sentence": card.sentence,
        "at": _text(card.at),
        "last_heard_at": _text(card.last_at),
        "unknown_since": None if card.at else _text(card.last_at),
        "queue_store": card.queue_store,
        "worker": {
            "reports": card.at is not None and card.worker_silent_since is None,
            "unknown_since": _text(card.worker_silent_since if card.at else card.last_at),
        },
        "models": [_model_json(card, pool) for pool in card.pools],
        "engines": [_engine_json(engine, queue_known=card.queue_known) for engine in card.engines],
    }


def _model_json(card: shapes.Reading, pool: shapes.PoolReading) -> dict[str, Any]:
    return {
        "model": pool.name,
        "state": pool.state,
        "slots": pool.slots,
        "held": pool.held if pool.slots is not None else None,
        "running": pool.running if pool.queue_known else None,
        "waiting": pool.waiting if pool.queue_known else None,
        "oldest_wait_s": pool.oldest_s if pool.queue_known else None,
        "expected_wait_s": pool.wait_s,
        "unknown_since": _text(_unknown_since(card, pool)),
        "batch_limit": pool.batch_limit,
        "batch_borrows_idle_slots": pool.borrowed if pool.queue_known else None,
        "verdicts": {
            name: {
                "state": verdict.state,
                "since": _text(verdict.since),
                "cause": verdict.cause or None,
                "ratio": verdict.ratio,
            }
            for name, verdict in pool.verdicts.items()
        },
        "waiting_because": pool.blockers if pool.queue_known else None,
    }


def _unknown_since(card: shapes.Reading, pool: shapes.PoolReading) -> datetime | None:
    """Return since when something of the pool is unknown, if anything is."""
    return pool.silent_since if pool.queue_known else card.queue_at


def _engine_json(engine: shapes.Engine, *, queue_known: bool) -> dict[str, Any]:
    fields = dataclasses.asdict(engine.live)
    if not queue_known:
        fields |= {"held_interactive": None, "held_batch": None}
    names = ("name", "pool", "kind", "state", "slots")
    current = (
        "held_interactive", "held_batch", "engine_running", "engine_waiting", "kv_usage",
        "prefix_hit_rate", "tokens_out_per_s", "tokens_in_per_s", "measured_share",
    )  # fmt: skip
    return {
        **{name: fields[name] for name in names},
        **{name: fields[name] if engine.current else None for name in current},
        "seen_at": _text(engine.seen_at),
        "unknown_since": None if engine.current else _text(engine.seen_at),
        "note": engine.live.note,
    }
