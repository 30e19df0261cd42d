"""Quotas of everybody, for administrators: filter, edit, preview, apply; CSV out and in."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any, cast

from django.contrib import messages
from django.contrib.admin.views.decorators import staff_member_required
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal import downloads
from portal.quota_grid import plan, rows
from quotas import limits as limit_specs
from quotas.limits import LimitSpec
from quotas.models import Group, User
from quotas.services import bulk, limit_csv
from quotas.services.bulk import Change, Operation

LARGEST_CSV = 10 * 1024 * 1024
SHOWN = 500


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
        "rows": rows.rows(page.object_list, spec, service_class),
    }
    return render(request, "quota/grid.html", context)


@require_POST
@staff_member_required
def preview(request: HttpRequest) -> HttpResponse:
    """Show what edits or a change of many would do; nothing is changed yet."""
    spec, service_class = _chosen(request.POST)
    try:
        if request.POST.get("do") == "many":
            changes = _many(request, spec, service_class)
        else:
            changes = _edits(request, spec, service_class)
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
        return redirect(f"/quota/grid/?limit={spec.name}&class={service_class}")
    return _previewed(request, changes, ())


def _number(text: str, spec: LimitSpec) -> int:
    """Read a number as people write it: 200k, 1.5M, 40,000."""
    plain = text.strip().replace(",", "").replace(" ", "").lower()
    sizes = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
    size = sizes.get(plain[-1:], 1)
    try:
        return round(float(plain[:-1] if size > 1 else plain) * size)
    except (ValueError, OverflowError):
        raise ValidationError(f"{spec.label}: {text[:40]!r} is no number.") from None


def _edits(request: HttpRequest, spec: LimitSpec, service_class: str) -> list[Change]:
    """Return the changes of the fields that were edited."""
    by_value: dict[int | None, list[int]] = defaultdict(list)
    for field in request.POST:
        text = request.POST.get(field, "")
        pk = field.removeprefix("own-")
        if field == pk or not pk.isascii() or not pk.isdigit():
            continue
        if text.strip() != request.POST.get(f"was-{pk}", "").strip():
            by_value[_number(text, spec) if text.strip() else None].append(int(pk))
    changes: list[Change] = []
    for value, pks in by_value.items():
        kind = "expire" if value is None else "set"
        operation = Operation(kind=kind, value=value, note=request.POST.get("note", "")[:200])
        changes += _of(pks, operation, spec, service_class)
    return changes


def _many(request: HttpRequest, spec: LimitSpec, service_class: str) -> list[Change]:
    """Return the changes of one operation on everybody selected."""
    kind = request.POST.get("op", "")
    if kind not in {"raise", "set", "expire"}:
        raise ValidationError("Choose what to do.")
    amount = request.POST.get("amount", "")
    number = _number(amount, spec) if kind != "expire" else 0
    if kind == "raise" and not -99 <= number <= 10_000:
        raise ValidationError("Raise by -99 to 10,000 per cent.")
    pks = [int(pk) for pk in request.POST.getlist("who") if pk.isascii() and pk.isdigit()]
    if not pks:
        raise ValidationError("Select at least one person.")
    operation = Operation(
        kind=kind,
        percent=number if kind == "raise" else 0,
        value=number if kind == "set" else None,
        ends_at=_end(request.POST.get("until", "")),
        note=request.POST.get("note", "")[:200],
    )
    return _of(pks, operation, spec, service_class)


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


def _of(pks: list[int], operation: Operation, spec: LimitSpec, service_class: str) -> list[Change]:
    people = User.objects.filter(pk__in=pks).select_related("group").order_by("username")
    return bulk.preview(
        operation=operation, people=people, service_class=service_class, name=spec.name
    )


def _previewed(
    request: HttpRequest, changes: list[Change], errors: tuple[tuple[int, str], ...]
) -> HttpResponse:
    context = {
        "section": "quota",
        "changes": changes[:SHOWN],
        "count": len(changes),
        "errors": errors[:SHOWN],
        "error_count": len(errors),
        "plan": plan.sign(changes, _person(request)),
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
    return redirect("quota-grid")


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
    return _previewed(request, list(found.changes), found.errors)
