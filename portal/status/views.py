"""The public status page, its JSON, and the live parts that pages fetch again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.announcements import models as announcements
from portal.status import history, measured, reading, source, week
from quotas.models import CapacityRun


def reading_for(request: HttpRequest) -> reading.Reading:
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
    return render(request, "status/page.html", {"section": "status", "card": card, **_past(card)})


def _past(card: reading.Reading) -> dict[str, Any]:
    """Return what stands below the live part; it comes from the books alone."""
    now = timezone.now()
    runs = CapacityRun.objects.filter(published_at__isnull=False, withdrawn_at=None)
    newest = {run.pool_name: run for run in runs.order_by("published_at")}
    slots = {pool.name: pool.slots or 0 for pool in card.pools}
    names = list(slots) or list(newest)
    days = history.days(names[0], now) if names else []
    return {
        "measured": [
            measured.of_run(
                newest[name],
                slots.get(name, 0),
                _changed(card, newest[name]),
                week.reached(name, now),
            )
            for name in names
            if name in newest
        ],
        "events": announcements.planned_and_past(now),
        "days": days,
        "day_bands": history.day_bands(days),
        "day_counts": dict(Counter(day.state for day in days)),
        "day": history.last_day(names[0], now) if names else None,
        "week": week.usual(names[0], now) if names else None,
    }


def _changed(card: reading.Reading, run: CapacityRun) -> tuple[str, ...]:
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
    response = JsonResponse(
        status_json(reading.read(source.read(), reader_id="", secret=settings.SECRET_KEY))
    )
    response["Cache-Control"] = "public, max-age=1"
    response["Access-Control-Allow-Origin"] = "*"
    return response


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def status_json(card: reading.Reading) -> dict[str, Any]:
    """Return the reading without anything that tells people apart."""
    return {
        "state": card.state,
        "sentence": card.sentence,
        "at": _text(card.at),
        "last_heard_at": _text(card.last_at),
        "queue_store": card.queue_store,
        "models": [
            {
                "model": pool.name,
                "state": pool.state,
                "slots": pool.slots,
                "held": pool.held if pool.slots is not None else None,
                "waiting": pool.waiting,
                "expected_wait_s": pool.wait_s,
                "batch_limit": pool.batch_limit,
                "batch_borrows_idle_slots": pool.borrowed,
                "verdicts": {
                    name: {
                        "state": verdict.state,
                        "since": _text(verdict.since),
                        "cause": verdict.cause or None,
                        "ratio": verdict.ratio,
                    }
                    for name, verdict in pool.verdicts.items()
                },
                "waiting_because": pool.blockers,
            }
            for pool in card.pools
        ],
        "engines": [_engine_json(engine) for engine in card.engines],
    }


def _engine_json(engine: reading.Engine) -> dict[str, Any]:
    fields = dataclasses.asdict(engine.live)
    names = ("name", "pool", "kind", "state", "slots")
    current = (
        "held_interactive", "held_batch", "engine_running", "engine_waiting", "kv_usage",
        "prefix_hit_rate", "tokens_out_per_s", "tokens_in_per_s",
    )  # fmt: skip
    return {
        **{name: fields[name] for name in names},
        **{name: fields[name] if engine.current else None for name in current},
        "seen_at": _text(engine.seen_at),
    }
