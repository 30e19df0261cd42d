"""Celery's part in the books: only the bell, the work is in the services."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.utils import timezone

from quotas.models import User
from quotas.services import partitions, people

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


@shared_task
def end_accounts() -> None:
    """Close the accounts whose end has come."""
    now = timezone.now()
    if User.objects.filter(is_active=True, ends_at__lte=now).exists():
        log.info("accounts_ended", count=people.end_accounts(now=now))
