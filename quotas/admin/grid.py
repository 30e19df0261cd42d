"""The quota grid and limits as CSV: edit many, look at a preview, apply all or none."""

from __future__ import annotations

import datetime as dt
from typing import Any, TypedDict

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminSingleDateWidget,
    UnfoldAdminTextInputWidget,
)

from quotas.admin import previews
from quotas.limits import CLASSES, offered
from quotas.models import Group, User
from quotas.services import bulk, grid, limit_csv
from quotas.services.bulk import Change, Operation
from quotas.snapshots import windows

PAGE = 100
MOST_UPLOAD = 10 * 1024 * 1024


class Limit(TypedDict):
    """Which limit of which class a grid shows."""

    name: str
    service_class: str


class ViewForm(forms.Form):
    """Which limit, class and people the grid shows."""

    name = forms.ChoiceField(
        label="Limit",
        required=False,
        widget=UnfoldAdminSelectWidget(),
        choices=lambda: [(spec.name, spec.label) for spec in offered() if not spec.is_list],
    )
    service_class = forms.ChoiceField(
        label="Class",
        required=False,
        choices=[(name, name) for name in CLASSES],
        widget=UnfoldAdminSelectWidget(),
    )
    group = forms.ModelChoiceField(
        Group.objects.all(),
        required=False,
        empty_label="all groups",
        widget=UnfoldAdminSelectWidget(),
    )
    search = forms.CharField(label="Name", required=False, widget=UnfoldAdminTextInputWidget())


class BulkForm(forms.Form):
    """What to do with the selected people."""

    operation = forms.ChoiceField(
        label="Selected people",
        choices=[
            ("", "change the edited cells only"),
            ("raise", "raise the effective value by %"),
            ("set", "set an override"),
            ("expire", "take overrides away"),
        ],
        required=False,
        widget=UnfoldAdminSelectWidget(),
    )
    amount = forms.IntegerField(
        label="By % or to", required=False, min_value=0, widget=UnfoldAdminIntegerFieldWidget()
    )
    until = forms.DateField(
        label="Ends by itself after", required=False, widget=UnfoldAdminSingleDateWidget()
    )
    note = forms.CharField(
        label="Reason, kept in the audit trail",
        required=False,
        max_length=200,
        widget=UnfoldAdminTextInputWidget(),
    )


class UploadForm(forms.Form):
    """A CSV of limits."""

    file = forms.FileField(label="CSV of limits", widget=UnfoldAdminFileFieldWidget())


def grid_page(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """Show the grid; POST shows a preview of what would change."""
    _allow(request, model_admin)
    view = ViewForm(request.GET or None)
    view.is_valid()
    chosen = getattr(view, "cleaned_data", {})
    limit = Limit(
        name=chosen.get("name") or "in_flight",
        service_class=chosen.get("service_class") or "interactive",
    )
    group = chosen.get("group")
    people = grid.people(group_id=group.pk if group else None, search=chosen.get("search", ""))
    edit = BulkForm(request.POST or None)
    if request.method == "POST":
        try:
            changes = _asked(request, edit, limit)
        except ValidationError as error:
            messages.error(request, "; ".join(error.messages))
        else:
            return _preview(request, model_admin, changes)
    page = Paginator(people, PAGE).get_page(request.GET.get("p"))
    context = _context(request, model_admin, "Quota grid") | {
        "view": view if request.GET else ViewForm(initial=dict(limit)),
        "edit": edit,
        "page": page,
        "rows": list(grid.rows(who=page.object_list, **limit)),  # type: ignore[arg-type]
        "limit": limit,
    }
    return render(request, "admin/quotas/limitrow/grid.html", context)


def apply(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """Apply what a preview showed."""
    _allow(request, model_admin)
    back = HttpResponseRedirect(reverse("admin:quotas_limitrow_grid"))
    try:
        count = bulk.apply(changes=previews.load(request.POST.get("changes", "")))
    except ValidationError as error:
        messages.error(request, "Nothing was changed. " + "; ".join(error.messages))
        return back
    messages.success(request, f"{count} changed; in force on every gateway within 5 seconds.")
    return back


def csv_out(request: HttpRequest, model_admin: Any) -> StreamingHttpResponse:
    """Stream every limit as CSV."""
    _allow(request, model_admin)
    answer = StreamingHttpResponse(limit_csv.write(), content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = 'attachment; filename="limits.csv"'
    return answer


def csv_in(request: HttpRequest, model_admin: Any) -> HttpResponse:
    """Read a CSV and show what it would change."""
    _allow(request, model_admin)
    upload = UploadForm(request.POST or None, request.FILES or None)
    errors: tuple[tuple[int, str], ...] = ()
    if upload.is_valid():
        file = upload.cleaned_data["file"]
        try:
            if file.size > MOST_UPLOAD:
                raise ValidationError("The file is too large.")
            plan = limit_csv.read(file.read().decode("utf-8-sig"))
        except (ValidationError, UnicodeDecodeError) as error:
            errors = ((0, f"The file cannot be read: {error}"),)
        else:
            errors = plan.errors
            if not errors:
                return _preview(request, model_admin, list(plan.changes))
    context = _context(request, model_admin, "Limits from CSV")
    context |= {"upload": upload, "errors": errors}
    return render(request, "admin/quotas/limitrow/csv.html", context)


def _allow(request: HttpRequest, model_admin: Any) -> None:
    if not model_admin.has_change_permission(request):
        raise PermissionDenied


def _context(request: HttpRequest, model_admin: Any, title: str) -> dict[str, Any]:
    each: dict[str, Any] = model_admin.admin_site.each_context(request)
    return {**each, "title": title, "opts": model_admin.model._meta}


def _preview(request: HttpRequest, model_admin: Any, changes: list[Change]) -> HttpResponse:
    context = _context(request, model_admin, "Preview: nothing is changed yet")
    context |= {"changes": changes, "signed": previews.dump(changes)}
    return render(request, "admin/quotas/limitrow/preview.html", context)


def _asked(request: HttpRequest, edit: BulkForm, limit: Limit) -> list[Change]:
    """Return the changes of the edited cells, or of the operation on the selected people."""
    if not edit.is_valid():
        raise ValidationError([str(text) for texts in edit.errors.values() for text in texts])
    wanted = edit.cleaned_data
    until = _end_of(wanted["until"])
    if wanted["operation"]:
        operation = Operation(
            kind=wanted["operation"],
            percent=wanted["amount"] or 0,
            value=wanted["amount"],
            ends_at=until,
            note=wanted["note"],
        )
        chosen = User.objects.filter(pk__in=request.POST.getlist("chosen")).select_related("group")
        changes = bulk.preview(operation=operation, people=chosen, **limit)
    else:
        changes = _edited(request, limit, until, wanted["note"])
    if not changes:
        raise ValidationError("Nothing would change: edit a cell, or select people.")
    return changes


def _edited(
    request: HttpRequest, limit: Limit, until: dt.datetime | None, note: str
) -> list[Change]:
    """Return a change for each override that was typed over or emptied."""
    typed = {
        int(name.removeprefix("override-")): str(text).strip()
        for name, text in request.POST.items()
        if name.startswith("override-") and name.removeprefix("override-").isdigit()
    }
    seen = {pk: request.POST.get(f"seen-{pk}", "") for pk in typed}
    edited = {pk: text for pk, text in typed.items() if text != seen[pk]}
    people = User.objects.filter(pk__in=edited).select_related("group")
    changes: list[Change] = []
    for user in people:
        text = edited[user.pk]
        if text and not (text.isascii() and text.isdigit()):
            raise ValidationError(f"{user.username}: {text!r} is no whole number.")
        operation = Operation(
            kind="set" if text else "expire",
            value=int(text) if text else None,
            ends_at=until,
            note=note,
        )
        changes += bulk.preview(operation=operation, people=[user], **limit)
    return changes


def _end_of(date: dt.date | None) -> dt.datetime | None:
    """Return the end of a local day."""
    if date is None:
        return None
    return windows.start_of(date + dt.timedelta(days=1), settings.TIME_ZONE)
