"""Says whether the last week's waiting asks for a decision, and shows the arithmetic."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from gateway.core.decision import Day, Decision, decide
from gateway.core.types import Blocker
from quotas.models import CapacityRun, Pool
from quotas.services import capacity


class Command(BaseCommand):
    """Judge each pool's week; run once a day, harmless at any time."""

    help = "Judge from the last seven days whether a pool needs more hardware, or something else."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the form of the answer."""
        parser.add_argument("--json", action="store_true", help="print JSON for machines")

    def handle(self, *args: Any, **options: Any) -> None:
        """Judge, keep, print."""
        found = {pool.name: _decide(pool) for pool in Pool.objects.all()}
        today = timezone.localdate()
        for name, decision in found.items():
            if decision is not None:
                capacity.record_decision(pool=name, date=today, **_fields(decision))
        if options["json"]:
            plain = {name: asdict(d) if d else None for name, d in found.items()}
            self.stdout.write(json.dumps(plain))
            return
        for name, decision in found.items():
            self.stdout.write(f"{name}: {_text(decision)}")


def _decide(pool: Pool) -> Decision | None:
    days = [
        Day(
            date=row["date"].isoformat(),
            saturated=row["saturated"],
            overloaded=row["overloaded"],
            waited_s={Blocker(name): seconds for name, seconds in row["waited_s"].items()},
            kv_usage=row["kv_usage"],
            preemptions=row["preemptions"],
            offered_tokens_per_s=row["offered_tokens_per_s"],
        )
        for row in capacity.days(pool.name)
    ]
    replicas = pool.replicas.filter(state="active").count()
    return decide(days, replicas=replicas, replica_tokens_per_s=_measured_rate(pool))


def _measured_rate(pool: Pool) -> float | None:
    """Return the best sustained decode rate of one replica of the pool, as measured last."""
    run = (
        CapacityRun.objects.filter(
            pool_name=pool.name, state=CapacityRun.State.COMPLETE, withdrawn_at__isnull=True
        )
        .order_by("-ended_at")
        .first()
    )
    rate = run.report.get("peak_decode_per_s") if run else None
    return float(rate) if rate else None


def _fields(decision: Decision) -> dict[str, Any]:
    return {**asdict(decision), "blocker": decision.blocker.value}


def _text(decision: Decision | None) -> str:
    if decision is None:
        return "nothing to decide."
    return f"{decision.action} {decision.reason} {decision.arithmetic}"
