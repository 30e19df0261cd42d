"""Celery's part in the books: only the bell, the work is in the services."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.utils import timezone

from quotas.services import partitions

log = structlog.get_logger(__name__)


@shared_task
def keep_partitions() -> None:
    """Make the coming months' partitions and drop those past their retention."""
    now = timezone.now()
    made = partitions.ensure(now=now)
    months = partitions.retention_months()
    dropped = partitions.drop_before(now=now, months=months) if months else []
    if made or dropped:
        log.info("usage_partitions", made=made, dropped=dropped)
