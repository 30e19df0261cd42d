"""Every published measurement with its date, what differs from the one before, and raw data.

Withdrawn figures stay here with the reason. Nothing here is private: people plan by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from quotas.models import CapacityRun
from quotas.services import capacity
from quotas.services.capacity import Difference

SHOWN = 50


@dataclass(frozen=True, slots=True)
class Entry:
    """One published run beside the one before it of the same model."""

    run: CapacityRun
    differences: tuple[Difference, ...]
    has_earlier: bool


def published() -> QuerySet[CapacityRun]:
    """Return the runs anybody may see, newest first: published ones, withdrawn or not."""
    return CapacityRun.objects.filter(published_at__isnull=False).order_by("-ended_at")


def entries() -> list[Entry]:
    """Return the newest published runs, each with what changed since the one before."""
    runs = list(published()[:SHOWN])
    found = []
    for place, run in enumerate(runs):
        earlier = next((r for r in runs[place + 1 :] if r.pool_name == run.pool_name), None)
        changed = capacity.differences(earlier.fingerprint, run.fingerprint) if earlier else ()
        found.append(Entry(run, changed, earlier is not None))
    return found


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Show all published measurements."""
    return render(request, "capacity/index.html", {"section": "status", "entries": entries()})


@require_safe
def raw(request: HttpRequest, run_id: str) -> JsonResponse:
    """Return a run with its raw samples; unpublished ones to administrators only."""
    person = request.user
    visible = CapacityRun.objects.all() if person.is_staff else published()
    run = get_object_or_404(visible, public_id=run_id)
    return JsonResponse(as_json(run), json_dumps_params={"indent": 1})


def as_json(run: CapacityRun) -> dict[str, Any]:
    """Return everything a run holds except who asked for it."""
    return {
        "run": run.public_id,
        "model": run.pool_name,
        "engine": run.replica_name,
        "state": run.state,
        "reason": run.reason,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "published_at": run.published_at,
        "withdrawn_at": run.withdrawn_at,
        "withdrawn_reason": run.withdrawn_reason,
        "sentence": run.sentence,
        "fingerprint_digest": run.fingerprint_digest,
        "fingerprint": run.fingerprint,
        "plan": run.plan,
        "report": run.report,
        "samples": [
            {
                "step": sample.step,
                "kind": sample.kind,
                "prompt_tokens": sample.prompt_tokens,
                "concurrency": sample.concurrency,
                "repeat": sample.repeat,
                "answers": sample.answers,
            }
            for sample in run.samples.all()
        ],
    }
