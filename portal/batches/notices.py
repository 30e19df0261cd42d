"""Tells owners what they should not have to look for: the end of a job, and a silence.

Each notice is claimed by a conditional update before it is sent, so that it goes out once; one
that cannot be sent is logged and not repeated, because the page shows the same.
"""

from __future__ import annotations

import datetime as dt

import structlog
from django.conf import settings
from django.core.mail import EmailMessage
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone

from portal.batches import insight
from portal.batches.models import BatchJob
from portal.batches.states import JOB_ENDS, SENDING
from quotas.models import User

log = structlog.get_logger(__name__)
NOT_OLDER_THAN = dt.timedelta(days=2)  # after a long stop, nobody wants last week's mail


def send_due() -> None:
    """Send the notices that are due, each once."""
    _tell_ends()
    _tell_silences()


def _tell_ends() -> None:
    ended = BatchJob.objects.filter(
        state__in=JOB_ENDS, ended_notice_at__isnull=True,
        created_at__gt=timezone.now() - NOT_OLDER_THAN - dt.timedelta(days=7),
    )  # fmt: skip
    for job in ended.select_related("owner", "output_file", "error_file")[:100]:
        if _claim(job, "ended_notice_at"):
            _send("ended", f"{job.name}: {job.get_state_display()}", job, [job.owner])


def silent_jobs() -> list[BatchJob]:
    """Return jobs of which no line has ended for too long and nobody has been told."""
    before = timezone.now() - dt.timedelta(seconds=settings.BATCH_STALLED_AFTER_S)
    rows = BatchJob.objects.annotate(since=Coalesce("last_line_at", "created_at")).filter(
        # Told once for each silence: a line that ends in between begins a new one.
        Q(stalled_notice_at__isnull=True) | Q(stalled_notice_at__lt=F("since")),
        state__in=SENDING,
        since__lt=before,
    )
    return list(rows.select_related("owner", "key__owner__group")[:100])


def _tell_silences() -> None:
    for job in silent_jobs():
        if not _claim(job, "stalled_notice_at"):
            continue
        admins = User.objects.filter(is_superuser=True, is_active=True)
        log.error("batch_stalled", batch=job.public_id, owner=job.owner_id, why=job.wait_code)
        _send("stalled", f"{job.name}: no line has ended for a while", job, [job.owner, *admins])


def _claim(job: BatchJob, column: str) -> bool:
    """Take one notice; False: another process sends it."""
    seen = getattr(job, column)
    same = {f"{column}__isnull": True} if seen is None else {column: seen}
    claimed = BatchJob.objects.filter(pk=job.pk, **same).update(**{column: timezone.now()})
    return claimed == 1


def _send(template: str, subject: str, job: BatchJob, people: list[User]) -> None:
    addresses = list(dict.fromkeys(person.email for person in people if person.email))
    if not addresses:
        return
    now = insight.of(job, with_estimate=False)
    context = {
        "job": job,
        "address": settings.PUBLIC_URL + reverse("batch", args=[job.public_id]),
        "since": job.last_line_at or job.created_at,
        "why": now.why if now else "",
    }
    text = render_to_string(f"batches/mail_{template}.txt", context)
    one_line = " ".join(subject.split())[:200]
    for address in addresses:
        try:
            EmailMessage(f"[Fairway] {one_line}", text, to=[address]).send()
        except OSError as error:
            log.warning("mail_not_sent", batch=job.public_id, error=str(error)[:200])
