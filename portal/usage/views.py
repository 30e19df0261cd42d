"""Usage: what I used, when, with which key, and every single request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal import downloads
from portal.usage import history, middles, series
from quotas import exports, reports
from quotas.models import Pool, RejectedMinute, User
from quotas.reports import Only

TABS = (("24h", "24 hours"), ("7d", "7 days"), ("30d", "30 days"))
TABLE_ROWS = 31


def _person(request: HttpRequest) -> User:
    return cast("User", request.user)


def _split(request: HttpRequest) -> str:
    split = request.GET.get("split", "class")
    return split if split in series.SPLITS else "class"


def _range(request: HttpRequest) -> tuple[series.Range, str]:
    """Return the range asked for and, when it cannot be shown, why."""
    now, get = timezone.now(), request.GET
    try:
        return series.chosen(get.get("range", ""), get.get("from", ""), get.get("to", ""), now), ""
    except series.WrongRange as error:
        return series.chosen("30d", "", "", now), str(error)


@require_safe
@login_required
def index(request: HttpRequest) -> HttpResponse:
    """Show sums, chart and table of a range."""
    person, split = _person(request), _split(request)
    wanted, problem = _range(request)
    only = Only(user_id=person.pk)
    now = timezone.now()
    picture = series.picture(only, wanted, split, now)
    context: dict[str, Any] = {
        "section": "usage",
        "range": wanted,
        "problem": problem,
        "tabs": TABS,
        "split": split,
        "splits": tuple(series.SPLITS),
        "picture": picture,
        "middles": middles.of_person(person.pk, *series.bounds(wanted, now)),
        "rows": picture.rows[::-1][:TABLE_ROWS],
        "share": series.share_of_card(wanted, picture.total.tokens),
        "rejected": _rejected(person, wanted),
        "query": _query(wanted),
    }
    return render(request, "usage/index.html", context)


def _query(wanted: series.Range) -> str:
    if wanted.name != "custom":
        return f"range={wanted.name}"
    return f"range=custom&from={wanted.period.first}&to={wanted.period.last}"


def _rejected(person: User, wanted: series.Range) -> list[dict[str, Any]]:
    """Return how often the person's keys were turned away at the door, by code."""
    keys = list(person.keys.values_list("public_id", flat=True))
    minutes = RejectedMinute.objects.filter(
        key_id__in=keys, minute__gte=wanted.period.start, minute__lt=wanted.period.end
    )
    found: Iterable[Any] = minutes.values("code").annotate(times=Sum("count"))
    return sorted(found, key=lambda row: -row["times"])


@require_safe
@login_required
def export(request: HttpRequest, kind: str) -> HttpResponse | StreamingHttpResponse:
    """Return the range by day as CSV or JSON, from the query behind the page."""
    wanted, problem = _range(request)
    if problem:
        return HttpResponse(problem, status=400, content_type="text/plain")
    split = _split(request)
    by = ("day", "model") if split == "model" else ("day", split, "model")
    header, rows = exports.report_table(
        by, reports.lines(by, wanted.period, Only(user_id=_person(request).pk))
    )
    return _file(request, kind, "usage", wanted, header, rows)


@require_safe
@login_required
def export_requests(request: HttpRequest, kind: str) -> HttpResponse | StreamingHttpResponse:
    """Return every single request of the range, streamed."""
    wanted, problem = _range(request)
    if problem:
        return HttpResponse(problem, status=400, content_type="text/plain")
    found = reports.requests(wanted.period, Only(user_id=_person(request).pk))
    header, rows = exports.request_table(found)
    return _file(request, kind, "requests", wanted, header, rows)


def _file(
    request: HttpRequest,
    kind: str,
    what: str,
    wanted: series.Range,
    header: list[str],
    rows: Iterable[list[Any]],
) -> StreamingHttpResponse:
    """Stream a table."""
    lines = exports.csv_lines(header, rows) if kind == "csv" else exports.json_lines(header, rows)
    name = f"{what}-{wanted.period.first}-{wanted.period.last}"
    return downloads.answer(request, name, kind, lines)


@require_safe
@login_required
def requests_page(request: HttpRequest) -> HttpResponse:
    """Show single requests, newest first."""
    person = _person(request)
    filters = {name: request.GET.get(name, "")[:200] for name in history.FILTERS}
    page = history.page(person.pk, filters, request.GET.get("after", "")[:200])
    keys = dict(person.keys.values_list("public_id", "name"))
    context = {
        "section": "usage",
        "page": page,
        "filters": filters,
        "keys": keys,
        "rows": [
            (row, keys.get(row.key_id, row.key_id), history.outcome_words(row)) for row in page.rows
        ],
        "models": list(Pool.objects.values_list("name", flat=True)),
        "outcomes": history.OUTCOMES,
    }
    return render(request, "usage/requests.html", context)
