"""Celery's part in the books: only the bell, the work is in the services."""

from __future__ import annotations

import subprocess
import sys

import structlog
from celery import shared_task
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from quotas import quota_mail, stores
from quotas.models import CapacityRun, Replica, User
from quotas.services import capacity, partitions, people

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


@shared_task
def warn_of_quotas() -> None:
    """Mail people whose limits of the day or month are used up, or nearly."""
    if sent := quota_mail.send(timezone.now()):
        log.info("quota_mails", count=sent)


@shared_task
def measure(run_id: str) -> None:
    """Start a planned measurement in a process of its own: it may take an hour, a worker is for
    short work. The process ends itself when this worker dies."""
    run = CapacityRun.objects.get(public_id=run_id)
    if run.replica is None or run.state != CapacityRun.State.PLANNED:
        return
    manage = str(settings.BASE_DIR / "manage.py")
    subprocess.Popen(
        [
            sys.executable,
            manage,
            "measurecapacity",
            run.replica.public_id,
            "--run",
            run_id,
            "--json",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


@shared_task
def measure_engine(name: str, *, quick: bool = False, announced_min: float = 10.0) -> None:
    """Plan and start a measurement; for a periodic task in quiet hours. People see it coming."""
    replica = Replica.objects.get(name=name)
    run = capacity.request(
        replica=replica, wishes=capacity.QUICK if quick else None, in_s=60 * announced_min
    )
    measure.delay(run.public_id)


@shared_task
def keep_minutes() -> None:
    """Move what the gateways saw into the books, and tell them what was measured."""
    store = stores.connect()
    capacity.keep_minutes(store)
    capacity.publish_measured(store)
    capacity.bury_silent()


@shared_task
def decide_capacity() -> None:
    """Judge the week of each pool, and forget minutes that nobody looks at any more."""
    call_command("decidecapacity")
    capacity.forget_old_minutes()
