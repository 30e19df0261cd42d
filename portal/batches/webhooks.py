"""Tells a program of the owner that a batch has ended: a signed POST, repeated until it is taken.

A server that sends requests to addresses people choose can be turned against its own network, so
only hosts an administrator lists in `WEBHOOK_HOSTS` are called, redirects are not followed, and
nothing of the answer but its status is kept. Without that list there are no webhooks.

The form is that of standardwebhooks.com: the headers `webhook-id`, `webhook-timestamp` and
`webhook-signature`, which is `v1,` and the base64 HMAC-SHA-256 of `id.timestamp.body` under the
secret of the batch's key. The id is the same at every try, so that a receiver knows a repetition.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
from urllib.parse import urlsplit

import httpx
import orjson
import structlog
from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone

from portal.batches.models import BatchJob
from portal.batches.states import JOB_ENDS, PUBLIC, JobState
from portal.openai_api.errors import BadRequest
from quotas.models import ApiKey

log = structlog.get_logger(__name__)
PREFIX = "whsec_"
CONTEXT = b"fairway webhook secret v1"
ANSWER_S = 10.0
LENGTH_MOST = 500
#: Seconds to the next try after the first, second … one that was not taken; then it is given up.
PAUSES_S = (10, 60, 300, 1800, 7200, 21600)


def secret_of(key: ApiKey) -> str:
    """Return the secret by which the owner of a key knows our messages; a new key has a new one."""
    root = hmac.digest(settings.SECRET_KEY.encode(), CONTEXT, "sha256")
    own = hmac.digest(root, key.public_id.encode(), "sha256")
    return PREFIX + base64.b64encode(own).decode()


def signature(secret: str, event_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the signature header."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b"%b.%d.%b" % (event_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def check(url: object) -> str:
    """Return an address that may be called, or raise 400 saying why not; none is an empty text."""
    if url is None or url == "":
        return ""
    if not isinstance(url, str) or len(url) > LENGTH_MOST or not url.isprintable():
        raise _refused(f"webhook_url must be an address of at most {LENGTH_MOST} characters.")
    if not settings.WEBHOOK_HOSTS:
        raise _refused("Webhooks are switched off here; an administrator can list hosts for them.")
    if not is_allowed(url):
        raise _refused("webhook_url must lead to one of the hosts an administrator has listed.")
    return url


def _refused(message: str) -> BadRequest:
    return BadRequest(message, code="webhook_not_allowed", param="webhook_url")


def is_allowed(url: str) -> bool:
    """Tell whether an address is plain, and its host on the list; `.example` means all below."""
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if parts.scheme not in {"http", "https"} or parts.username or parts.password or "\\" in url:
        return False
    return any(
        host == listed or (listed.startswith(".") and host.endswith(listed))
        for listed in (name.lower() for name in settings.WEBHOOK_HOSTS)
    )


def state_of(job: BatchJob) -> str:
    """Return in a word where the message stands."""
    if job.webhook_ended_at is not None:
        return "given_up" if job.webhook_problem else "taken"
    return "repeating" if job.webhook_tries else "waiting"


def _due(now: dt.datetime) -> Q:
    first_or_due = Q(webhook_due_at__isnull=True) | Q(webhook_due_at__lte=now)
    return first_or_due & Q(state__in=JOB_ENDS, webhook_ended_at__isnull=True)


def are_due() -> bool:
    """Tell whether there is anything to send."""
    return BatchJob.objects.filter(_due(timezone.now())).exclude(webhook_url="").exists()


def send_due() -> int:
    """Send what is due, each claimed first so that two workers never send the same try."""
    now, sent = timezone.now(), 0
    jobs = BatchJob.objects.filter(_due(now)).exclude(webhook_url="").select_related("key")
    for job in jobs.order_by("webhook_due_at", "pk")[:50]:
        pause = PAUSES_S[min(job.webhook_tries, len(PAUSES_S) - 1)]
        claimed = BatchJob.objects.filter(pk=job.pk, webhook_tries=job.webhook_tries).update(
            webhook_tries=F("webhook_tries") + 1,
            webhook_due_at=timezone.now() + dt.timedelta(seconds=pause),
        )
        if claimed:
            _conclude(job, _send(job))
            sent += 1
    return sent


def event(job: BatchJob) -> dict[str, object]:
    """Return what is sent: that this batch has ended, and how; the rest is asked for."""
    state = JobState(job.state)
    ended = job.completed_at or job.failed_at or job.expired_at or job.cancelled_at
    return {
        "id": event_id(job),
        "object": "event",
        "type": f"batch.{PUBLIC[state]}",
        "created_at": int((ended or timezone.now()).timestamp()),
        "data": {
            "id": job.public_id,
            "request_counts": {
                "total": job.total, "completed": job.completed, "failed": job.failed,
            },
        },
    }  # fmt: skip


def event_id(job: BatchJob) -> str:
    """Return the name of the event; it is the same at every try."""
    return f"evt_{hashlib.sha256(job.public_id.encode()).hexdigest()[:32]}"


def _send(job: BatchJob) -> str:
    """Send once; return what went wrong, in a few words."""
    if not is_allowed(job.webhook_url):
        return "its host is not on the list any more"
    body, now = orjson.dumps(event(job)), int(timezone.now().timestamp())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "fairway-webhooks",
        "webhook-id": event_id(job),
        "webhook-timestamp": str(now),
        "webhook-signature": signature(secret_of(job.key), event_id(job), now, body),
    }
    try:
        with (
            httpx.Client(timeout=ANSWER_S, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", job.webhook_url, content=body, headers=headers) as answer,
        ):
            status = answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return f"no answer: {type(error).__name__}"
    return "" if 200 <= status < 300 else f"answered with status {status}"


def _conclude(job: BatchJob, problem: str) -> None:
    tries = job.webhook_tries + 1
    is_over = not problem or tries > len(PAUSES_S)
    if problem:
        log.warning("webhook_not_taken", batch=job.public_id, tries=tries, problem=problem)
    else:
        log.info("webhook_taken", batch=job.public_id, tries=tries)
    BatchJob.objects.filter(pk=job.pk).update(
        webhook_problem=problem, webhook_ended_at=timezone.now() if is_over else None
    )
