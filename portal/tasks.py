"""What the portal itself asks Celery to do: put numbers of the books on the metrics page."""

from __future__ import annotations

import time

from celery import shared_task
from django.db.models import Count, Min, Q
from django.utils import timezone

from portal.batches.models import BatchItem, BatchJob
from portal.batches.states import SENDING, ItemState
from quotas import stores
from quotas.models import ApiKey
from quotas.snapshots import exports
from quotas.snapshots.exports import EXPORTS, LIFE_S, Gauge
from quotas.snapshots.usage import STREAM

CELERY_QUEUE = "celery"
LONGEST_TRIAL_S = 600  # a hundred thousand requests take about twenty seconds


def gauges() -> list[Gauge]:
    """Return the numbers of the books as they are now."""
    store = stores.connect()
    jobs = dict(BatchJob.objects.values_list("state").annotate(Count("pk")))
    live = (ItemState.QUEUED, ItemState.RUNNING)
    lines = dict(
        BatchItem.objects.filter(state__in=live).values_list("state").annotate(Count("pk"))
    )
    found = [Gauge("fairway_batch_jobs", {"state": s}, n) for s, n in sorted(jobs.items())]
    found += [Gauge("fairway_batch_lines", {"state": s}, lines.get(s, 0)) for s in live]
    oldest = BatchJob.objects.filter(state__in=SENDING).aggregate(at=Min("last_line_at"))["at"]
    silent_s = (timezone.now() - oldest).total_seconds() if oldest else 0.0
    found.append(Gauge("fairway_batch_oldest_line_seconds", {}, silent_s))
    found.append(Gauge("fairway_celery_queue_length", {}, _length(store.llen(CELERY_QUEUE))))
    found.append(Gauge("fairway_usage_stream_records", {}, _length(store.xlen(STREAM))))
    usable = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    keys = ApiKey.objects.filter(usable, revoked_at__isnull=True).count()
    found.append(Gauge("fairway_live_keys", {}, keys))
    return found


def _length(value: object) -> float:
    """Return what redis-py says is either a number or a promise of one."""
    return float(value) if isinstance(value, int) else 0.0


@shared_task
def refresh_fairness(days: int) -> None:
    """Make a fairness report anew for the pages that show it."""
    from portal.fairness import kept  # it asks for this task

    kept.refresh(days)


@shared_task(soft_time_limit=LONGEST_TRIAL_S)
def try_policy(trial_id: str) -> None:
    """Play a trial of a policy for the page that shows it."""
    from portal.policy import trials  # it asks for this task

    trials.play(trial_id)


@shared_task
def publish_exports() -> None:
    """Tell the gateways' metrics pages the numbers of the books."""
    text = exports.to_json(time.time(), gauges())
    stores.connect().set(EXPORTS, text, ex=LIFE_S)
