"""The models page: what there is, how much of it, and which for what."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from portal.status import shapes
from portal.status.views import reading_for
from quotas.models import CapacityRun, Pool


@dataclass(frozen=True, slots=True)
class Model:
    """One model as people choose it; None is unknown."""

    pool: Pool
    now: shapes.PoolReading | None
    slots: int
    engines: tuple[str, ...]
    measured: CapacityRun | None


@require_safe
@login_required
def index(request: HttpRequest) -> HttpResponse:
    """Show every model with what is known of it."""
    card = reading_for(request)
    now = {pool.name: pool for pool in card.pools}
    runs = published()
    models = [
        Model(
            pool=pool,
            now=now.get(pool.name),
            slots=sum(r.slots for r in pool.replicas.all() if r.state == "active"),
            engines=tuple(
                f"{r.name} ({r.get_kind_display()})"
                for r in pool.replicas.all()
                if r.state != "disabled"
            ),
            measured=runs.get(pool.name),
        )
        for pool in Pool.objects.prefetch_related("replicas")
    ]
    return render(
        request, "catalogue/index.html", {"section": "models", "models": models, "card": card}
    )


def published() -> dict[str, CapacityRun]:
    """Return the newest published measurement of each model."""
    runs = CapacityRun.objects.filter(published_at__isnull=False, withdrawn_at=None)
    return {run.pool_name: run for run in runs.order_by("published_at")}
