"""What Celery and its beat call. Tasks fetch nothing and decide nothing; services do the work."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.conf import settings

from portal.batches import bell, ending, notices, results, watch, webhooks
from portal.batches.runner import attend
from portal.files import cleaning

log = structlog.get_logger(__name__)


@shared_task
def run_lines() -> None:
    """Send lines for one slice; ring again when there are more."""
    if attend.is_open() or watch.may_open_a_room(settings.BATCH_RUNNERS):
        if attend.attend():
            bell.ring()
        return
    # Another process sends. Should it have died, its leases end soon: wait for that, so that
    # a redelivered wake-up goes on at once and not with the next round of the sweeper.
    if watch.wait_for_dead_runner(settings.BATCH_LEASE_S + 1.0) and attend.attend():
        bell.ring()


@shared_task
def sweep() -> None:
    """Find what stands still: dead runners, closed windows, unwritten results, silent jobs."""
    ending.reclaim()
    ending.close_windows()
    for job_pk in results.jobs_to_write():
        results.write_results(job_pk)
    results.drop_forgotten_results()
    notices.send_due()
    if webhooks.are_due():
        send_webhooks.apply_async(ignore_result=True, retry=False, expires=60)
    if watch.lines_wait_for_nobody():
        bell.ring()


@shared_task
def send_webhooks() -> None:
    """Tell programs of ended batches; a task of its own, because they may answer slowly."""
    webhooks.send_due()


@shared_task
def clean() -> None:
    """Delete expired files and what broken uploads left behind."""
    cleaning.delete_expired()
    cleaning.sweep_strays()
