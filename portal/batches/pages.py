"""The pages of batches: list, upload with its report, detail, cancel, run again, another key."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from portal.batches import (
    drawing,
    ending,
    estimate,
    insight,
    partial,
    preview,
    services,
    submission,
    webhooks,
)
from portal.batches.forms import AnotherKeyForm, StartForm, UploadForm
from portal.batches.models import BatchJob
from portal.batches.states import SENDING, ItemState
from portal.files import services as files
from portal.files.models import StoredFile
from portal.files.services import unexpired
from portal.files.views import as_download
from portal.openai_api.errors import ApiError
from quotas.models import User

PER_PAGE = 25
FAILED_SHOWN = 50
CHART_SPAN = dt.timedelta(hours=24)


def _person(request: HttpRequest) -> User:
    return cast("User", request.user)  # behind login_required


def _own(request: HttpRequest, public_id: str) -> BatchJob:
    """Return the person's own batch; anybody else's is not there."""
    rows = BatchJob.objects.select_related(
        "key__owner__group", "input_file", "output_file", "retry_of"
    )
    return get_object_or_404(rows, public_id=public_id, owner=_person(request))


def _draft(request: HttpRequest, public_id: str) -> StoredFile:
    return get_object_or_404(
        StoredFile, unexpired(timezone.now()), public_id=public_id, owner=_person(request),
        purpose=StoredFile.Purpose.BATCH,
    )  # fmt: skip


@require_safe
@login_required
def index(request: HttpRequest) -> HttpResponse:
    """Show the person's batches and the form for a new one."""
    return _page(request, UploadForm(owner=_person(request)))


def _page(request: HttpRequest, form: UploadForm, status: int = 200) -> HttpResponse:
    rows = BatchJob.objects.filter(owner=_person(request)).select_related("output_file", "key")
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "section": "batches",
        "form": form,
        "page": page,
        "rows": [(job, _row(job)) for job in page],
        "most_lines": form.limits.lines,
        "most_mib": form.limits.size // 2**20,
    }
    return render(request, "batches/index.html", context, status=status)


def _row(job: BatchJob) -> dict[str, Any]:
    now = insight.of(job)
    sent = now.lines_running if now else 0
    return {
        "gauge": drawing.gauge(job.total, job.completed, job.failed, sent),
        "now": now,
        "state": _badge(job),
        "ended_at": _ended_at(job),
        "silent_since": ending.silent_since(job),
    }


def _ended_at(job: BatchJob) -> dt.datetime | None:
    return job.completed_at or job.cancelled_at or job.expired_at or job.failed_at


def _badge(job: BatchJob) -> str:
    """Return the lamp of a state; waiting has none."""
    if job.state == BatchJob.State.QUEUED:
        return ""
    if job.state in BatchJob.LIVE:
        return "busy"
    if job.state == BatchJob.State.COMPLETED:
        return "ok" if not job.failed else "busy"
    return "overloaded" if job.state == BatchJob.State.FAILED else "unknown"


@require_POST
@login_required
def upload(request: HttpRequest) -> HttpResponse:
    """Take a file, check every line, and show what was found before anything starts."""
    form = UploadForm(request.POST, request.FILES, owner=_person(request))
    if not form.is_valid():
        return _page(request, form, status=400)
    part = form.cleaned_data["file"]
    key = form.cleaned_data["key"]
    try:
        with files.Receipt() as receipt:
            for chunk in part.chunks(256 * 1024):
                receipt.feed(chunk)
            row = receipt.accept(owner=_person(request), key=key, filename=part.name, lenient=True)
    except ApiError as error:
        form.add_error("file", str(error))
        return _page(request, form, status=error.status)
    address = redirect("batch-report", row.public_id).url
    return redirect(f"{address}?key={key.public_id}&window={form.cleaned_data['window']}")


def _refusals(form: StartForm, file: StoredFile) -> tuple[list[Any], estimate.Estimate | None]:
    if not form.is_valid():
        return [], None
    key, window = form.cleaned_data["key"], submission.window(form.cleaned_data["window"])
    return submission.check(file, file.endpoint, key), estimate.of_file(file, key, window)


@login_required
def report(request: HttpRequest, file_id: str) -> HttpResponse:
    """Show what was found in an upload, with an estimate; POST starts it or discards it."""
    file = _draft(request, file_id)
    if request.method == "POST" and "discard" in request.POST:
        return _discard(request, file)
    given = request.POST if request.method == "POST" else request.GET
    form = StartForm(given or None, owner=_person(request))
    refusals, plan = _refusals(form, file)
    if request.method == "POST" and form.is_valid() and not refusals:
        wanted = submission.read(
            {
                "input_file_id": file.public_id,
                "endpoint": file.endpoint,
                "completion_window": form.cleaned_data["window"],
                "webhook_url": form.cleaned_data.get("webhook_url"),
            }
        )
        # A double click is one batch: the form carries the name of its own submission.
        job = services.submit(
            key=form.cleaned_data["key"], request=wanted, idempotency_key=f"page-{file.public_id}"
        )
        messages.success(request, f"{job.name} is in the queue: {job.total:,} lines.")
        return redirect("batch", job.public_id)
    context = {
        "section": "batches",
        "file": file,
        "form": form,
        "refusals": refusals,
        "plan": plan,
        "all_lines": file.lines + len(file.problems),
    }
    return render(request, "batches/report.html", context)


def _discard(request: HttpRequest, file: StoredFile) -> HttpResponse:
    try:
        files.delete(file)
    except ApiError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{file.filename} is deleted.")
    return redirect("batches")


@require_safe
@login_required
def detail(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Show one batch."""
    job = _own(request, batch_id)
    context = _live_context(job) | {
        "chart": _chart(job),
        "failed": _failed(job),
        "results": preview.of(job) if job.completed else [],
        "another_key": AnotherKeyForm(owner=_person(request)) if job.state in SENDING else None,
        "may_run_again": job.state not in BatchJob.LIVE
        and job.completed < job.total
        and job.input_file is not None,
        "not_done": job.total - job.completed,
        "ended_at": _ended_at(job),
    }
    return render(request, "batches/detail.html", context)


@require_safe
@login_required
def progress(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Return the part of the page that changes; 286 stops the polling when it has ended."""
    job = _own(request, batch_id)
    status = 200 if job.state in BatchJob.LIVE else 286
    return render(request, "batches/progress.html", _live_context(job), status=status)


def _live_context(job: BatchJob) -> dict[str, Any]:
    now = insight.of(job)
    sent = now.lines_running if now else 0
    silence = ending.silent_since(job)
    return {
        "section": "batches",
        "job": job,
        "insight": now,
        "plan": now.estimate if now else None,
        "state": _badge(job),
        "gauge": drawing.gauge(job.total, job.completed, job.failed, sent),
        "silent_since": silence,
        "live": job.state in BatchJob.LIVE,
        "webhook_state": webhooks.state_of(job) if job.webhook_url else "",
    }


def _chart(job: BatchJob) -> drawing.Chart | None:
    """Return lines finished per minute, over the last day of the job's life."""
    if job.last_line_at is None:
        return None
    until = timezone.now() if job.state in BatchJob.LIVE else job.last_line_at
    since = max(job.created_at, until - CHART_SPAN)
    until = max(until, since + dt.timedelta(minutes=1))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT least(width_bucket(extract(epoch FROM finished_at), %s, %s, %s), %s) - 1,"
            " count(*) FROM batch_item WHERE job_id = %s AND state IN ('done', 'failed')"
            " AND finished_at >= %s GROUP BY 1",
            [
                since.timestamp(), until.timestamp(), drawing.BARS, drawing.BARS, job.pk, since,
            ],
        )  # fmt: skip
        return drawing.chart(dict(cursor.fetchall()), since, until)


def _failed(job: BatchJob) -> list[dict[str, Any]]:
    """Return the first failed lines with what happened to each."""
    items = job.items.filter(state=ItemState.FAILED).order_by("line_no")[:FAILED_SHOWN]
    return [
        {
            "line_no": item.line_no,
            "custom_id": item.custom_id,
            "tries": max(1, item.failures or item.attempt),
            "what": item.problem or f"answered with status {item.status_code}",
        }
        for item in items
    ]


@login_required
def cancel(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Ask, then cancel."""
    job = _own(request, batch_id)
    if request.method != "POST":
        return render(request, "batches/cancel.html", _live_context(job))
    return _do(request, job, lambda: services.cancel(job=job), f"{job.name} is cancelled.")


@require_POST
@login_required
def again(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Submit the lines that did not end well as a new batch."""
    job = _own(request, batch_id)
    try:
        new = services.run_failed_again(job=job)
    except ApiError as error:
        messages.error(request, str(error))
        return redirect("batch", job.public_id)
    messages.success(request, f"{new.total:,} lines run again as {new.name}.")
    return redirect("batch", new.public_id)


@require_POST
@login_required
def another_key(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Let the batch go on under another key."""
    job = _own(request, batch_id)
    form = AnotherKeyForm(request.POST, owner=_person(request))
    if not form.is_valid():
        messages.error(request, "Choose one of your keys.")
        return redirect("batch", job.public_id)
    key = form.cleaned_data["key"]
    return _do(
        request, job, lambda: services.move_to_key(job=job, key=key), f"It goes on with {key.name}."
    )


def _do(request: HttpRequest, job: BatchJob, act: Any, done: str) -> HttpResponse:
    try:
        act()
    except ApiError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done)
    return redirect("batch", job.public_id)


@require_safe
@login_required
def download(request: HttpRequest, batch_id: str, what: str) -> HttpResponseBase:
    """Send the results so far, the errors, or the input."""
    job = _own(request, batch_id)
    if what == "input":
        if job.input_file is None:
            raise Http404
        return as_download(job.input_file)
    try:
        return partial.download(job, errors=what == "errors")
    except ApiError as error:
        raise Http404(str(error)) from error
