"""Quotas of everybody, for administrators: filter, edit, preview, apply; CSV out and in."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.views.decorators import staff_member_required
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal import downloads
from portal.quota_grid import plan, rows
from quotas import limits as limit_specs
from quotas.counts import read_count
from quotas.limits import LimitSpec
from quotas.models import Group, User
from quotas.services import bulk, limit_csv
from quotas.services.bulk import Change, Operation

LARGEST_CSV = 10 * 1024 * 1024
SHOWN = 500
SHOWN_BY = ("limit", "class", "group", "q", "page")  # what the grid shows is in its address


def _person(request: HttpRequest) -> User:
    return cast("User", request.user)


def _specs() -> list[LimitSpec]:
    return [spec for spec in limit_specs.offered() if not spec.is_list]


def _chosen(data: Any) -> tuple[LimitSpec, str]:
    """Return the limit and class a form asks for."""
    known = {spec.name: spec for spec in _specs()}
    spec = known.get(data.get("limit", ""), next(iter(known.values())))
    service_class = "batch" if data.get("class") == "batch" else "interactive"
    return spec, service_class if service_class in spec.classes else spec.classes[0]


@require_safe
@staff_member_required
def grid(request: HttpRequest) -> HttpResponse:
    """Show one limit of everybody."""
    spec, service_class = _chosen(request.GET)
    query, group = request.GET.get("q", "")[:100], request.GET.get("group", "")
    found = rows.people(query, group)
    page = Paginator(found, rows.PAGE).get_page(request.GET.get("page"))
    context = {
        "section": "quota",
        "specs": _specs(),
        "spec": spec,
        "service_class": service_class,
        "groups": Group.objects.all(),
        "group": group,
        "query": query,
        "page": page,
        "grid": rows.grid(page.object_list, spec, service_class),
    }
    return render(request, "quota/grid.html", context)


@require_POST
@staff_member_required
def preview(request: HttpRequest) -> HttpResponse:
    """Show what edits or a change of many would do; nothing is changed yet."""
    spec, service_class = _chosen(request.POST)
    changes: list[Change] = []
    errors: list[str] = []
    try:
        if request.POST.get("do") == "many":
            changes = _many(request, spec, service_class)
        else:
            changes, errors = _edits(request, spec, service_class)
    except ValidationError as error:
        errors = error.messages
    return _previewed(request, changes, errors)


def _number(text: str, spec: LimitSpec) -> int:
    try:
        return read_count(text)
    except ValueError as error:
        raise ValidationError(f"{spec.label}: {error}") from None


def _edited(request: HttpRequest, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield whose field was edited, and what it says now."""
    for field in request.POST:
        whose = field.removeprefix(f"{prefix}-")
        if field == whose or (whose != "everyone" and not (whose.isascii() and whose.isdigit())):
            continue
        text = request.POST.get(field, "").strip()
        if text != request.POST.get(f"was-{prefix}-{whose}", "").strip():
            yield whose, text


def _edits(
    request: HttpRequest, spec: LimitSpec, service_class: str
) -> tuple[list[Change], list[str]]:
    """Return the changes of the fields that were edited, and what could not be read."""
    people: dict[int | None, list[int]] = defaultdict(list)
    groups: dict[int | None, list[int]] = defaultdict(list)
    everyone: set[int | None] = set()
    errors: list[str] = []
    for prefix, by_value in (("own", people), ("group", groups)):
        for whose, text in _edited(request, prefix):
            try:
                value = _number(text, spec) if text else None
            except ValidationError as error:
                errors += error.messages
                continue
            if whose == "everyone":
                everyone.add(value)
            else:
                by_value[value].append(int(whose))
    note = request.POST.get("note", "")[:200]
    changes: list[Change] = []
    for value in {*people, *groups, *everyone}:
        kind = "expire" if value is None else "set"
        changes += bulk.preview(
            operation=Operation(kind=kind, value=value, note=note),
            people=_people(people[value]),
            in_groups=Group.objects.filter(pk__in=groups[value]),
            of_everyone=value in everyone,
            service_class=service_class, name=spec.name, per=spec.usual_per("user"),
        )  # fmt: skip
    return changes, errors


def _many(request: HttpRequest, spec: LimitSpec, service_class: str) -> list[Change]:
    """Return the changes of one operation on everybody selected, or on all of the filter."""
    kind = request.POST.get("op", "")
    if kind not in {"raise", "set", "expire"}:
        raise ValidationError("Choose what to do.")
    amount = request.POST.get("amount", "")
    if request.POST.get("all"):
        people = rows.people(request.POST.get("q", "")[:100], request.POST.get("group", ""))
    else:
        people = _people(
            [int(pk) for pk in request.POST.getlist("who") if pk.isascii() and pk.isdigit()]
        )
        if not request.POST.getlist("who"):
            raise ValidationError("Select at least one person.")
    operation = Operation(
        kind=kind,
        percent=_percent(amount) if kind == "raise" else 0,
        value=_number(amount, spec) if kind == "set" else None,
        ends_at=_end(request.POST.get("until", "")),
        note=request.POST.get("note", "")[:200],
    )
    return bulk.preview(
        operation=operation, people=people, service_class=service_class, name=spec.name
    )


def _percent(text: str) -> int:
    try:
        number = int(text.strip().removesuffix("%"))
    except ValueError:
        number = 10**9
    if not -99 <= number <= 10_000:
        raise ValidationError("Raise by a whole number of per cent, -99 to 10,000.")
    return number


def _end(text: str) -> dt.datetime | None:
    """Return the first instant after the chosen day."""
    if not text:
        return None
    try:
        day = parse_date(text)
    except ValueError:
        day = None
    if day is None:
        raise ValidationError("The end is no date.")
    following = day + dt.timedelta(days=1)
    return dt.datetime.combine(following, dt.time(), tzinfo=timezone.get_current_timezone())


def _people(pks: list[int]) -> QuerySet[User]:
    return User.objects.filter(pk__in=pks).select_related("group").order_by("username")


def _where(request: HttpRequest) -> str:
    """Return the address of the grid as it was looked at."""
    shown = {name: request.POST.get(name, "") for name in SHOWN_BY}
    query = urlencode({name: value for name, value in shown.items() if value})
    return reverse("quota-grid") + (f"?{query}" if query else "")


def _previewed(request: HttpRequest, changes: list[Change], errors: Sequence[str]) -> HttpResponse:
    context = {
        "section": "quota",
        "changes": changes[:SHOWN],
        "count": len(changes),
        "errors": errors[:SHOWN],
        "error_count": len(errors),
        "plan": plan.sign(changes, _person(request)),
        "where": _where(request),
        "shown": [(name, request.POST.get(name, "")) for name in SHOWN_BY],
    }
    return render(request, "quota/preview.html", context)


@require_POST
@staff_member_required
def apply(request: HttpRequest) -> HttpResponse:
    """Apply a preview: all of it, or nothing when a row changed meanwhile."""
    try:
        changes = plan.load(request.POST.get("plan", ""), _person(request))
        count = bulk.apply(changes=changes)
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
    else:
        messages.success(
            request, _("%(count)s changed; in force on every gateway within 5 s") % {"count": count}
        )
    return redirect(_where(request))


@require_safe
@staff_member_required
def csv_out(request: HttpRequest) -> StreamingHttpResponse:
    """Hand out every row of limits as CSV."""
    return downloads.answer(request, "limits", "csv", limit_csv.write())


@require_POST
@staff_member_required
def csv_in(request: HttpRequest) -> HttpResponse:
    """Read an edited CSV and show what it would change."""
    file = request.FILES.get("file")
    if file is None or (file.size or 0) > LARGEST_CSV:
        messages.error(request, _("Choose a CSV file of at most 10 MiB."))
        return redirect("quota-grid")
    try:
        text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        messages.error(request, _("The file is not UTF-8 text."))
        return redirect("quota-grid")
    found = limit_csv.read(text)
    errors = [_("line %(line)s: %(text)s") % {"line": n, "text": text} for n, text in found.errors]
    return _previewed(request, list(found.changes), errors)
