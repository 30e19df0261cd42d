"""Asking for more, deciding about it, and the page of a group's owner."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.db.models import Count, F, Q, Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.accounts.joining import invite_form
from portal.quota_requests.forms import AskForm, DecideForm, DivideForm, present, value_words
from quotas import limits as limit_specs
from quotas import reports
from quotas.models import Invite, LimitRow, QuotaRequest, UsageHour, User
from quotas.reports import Only, Period
from quotas.services import groups, requests

GET_OR_POST = ["GET", "HEAD", "POST"]
SHOWN = 50


def _person(request: HttpRequest) -> User:
    return cast("User", request.user)


def _label(name: str) -> str:
    spec = limit_specs.BY_NAME.get(name)
    return spec.label if spec else name


def _rows(found: Any) -> list[tuple[QuotaRequest, str]]:
    return [(one, _label(one.name)) for one in found]


@require_http_methods(GET_OR_POST)
@login_required
def index(request: HttpRequest) -> HttpResponse:
    """Show my requests, those I may decide, and the form for another."""
    person = _person(request)
    wanted = {name: request.GET[name] for name in ("service_class", "name") if name in request.GET}
    form = AskForm(request.POST or None, person=person, initial=wanted)
    if request.method == "POST" and form.is_valid():
        try:
            requests.ask(
                user=person,
                service_class=form.cleaned_data["service_class"],
                name=form.cleaned_data["name"],
                value=form.cleaned_data["value"],
                reason=form.cleaned_data["reason"],
                until=form.ends_at,
            )
        except ValidationError as error:
            _tell(form, error)
        else:
            messages.success(request, _("Asked. You get a mail, and the answer stands here"))
            return redirect("quota")
    context = {
        "section": "quota",
        "form": form,
        "mine": _rows(person.quota_requests.all()[:SHOWN]),
        "waiting": _rows(requests.to_decide(person=person)[:SHOWN]),
    }
    return render(request, "quota/index.html", context, status=400 if form.errors else 200)


def _tell(form: Any, error: ValidationError) -> None:
    parts = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
    names = {"asked": "value", "wanted_until": "until", "ends_at": "until"}
    for field, texts in parts.items():
        for text in texts:
            known = names.get(field, field)
            form.add_error(known if known in form.fields else None, text)


@require_POST
@login_required
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Take one's own open request back."""
    asked = get_object_or_404(QuotaRequest, pk=pk, user=_person(request))
    try:
        requests.withdraw(request=asked, by=_person(request))
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
    else:
        messages.success(request, _("Taken back"))
    return redirect("quota")


@require_http_methods(GET_OR_POST)
@login_required
def decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Approve, change or refuse a request of somebody else."""
    person = _person(request)
    asked = get_object_or_404(QuotaRequest.objects.select_related("user__group"), pk=pk)
    if not requests.may_decide(person=person, request=asked):
        raise Http404
    form = DecideForm(request.POST or None, initial={"value": asked.asked})
    if request.method == "POST" and form.is_valid():
        answer = form.cleaned_data["answer"]
        try:
            if request.POST.get("do") == "refuse":
                requests.refuse(request=asked, by=person, answer=answer)
            else:
                requests.approve(
                    request=asked, by=person, value=form.cleaned_data["value"], answer=answer
                )
        except ValidationError as error:
            _tell(form, error)
        else:
            messages.success(
                request,
                _("Answered %(username)s; in force within 5 s") % {"username": asked.user.username},
            )
            return redirect("quota")
    value, level = present(asked.user, asked.service_class).get(asked.name, (None, "default"))
    month = Period.last_days(30, now=timezone.now())
    context = {
        "section": "quota", "asked": asked, "label": _label(asked.name), "form": form,
        "now": value_words(limit_specs.BY_NAME.get(asked.name), value), "level": level,
        "used": reports.total(
            month, Only(user_id=asked.user_id, service_class=asked.service_class)
        ),
    }  # fmt: skip
    return render(request, "quota/decide.html", context, status=400 if form.errors else 200)


@require_safe
@login_required
def group(request: HttpRequest) -> HttpResponse:
    """Show an owner the members of each group they own."""
    return _group_page(request, None)


def _group_page(request: HttpRequest, form: DivideForm | None, status: int = 200) -> HttpResponse:
    owned = list(_person(request).owned_groups.all())
    if not owned:
        raise Http404
    since = Period.last_days(30, now=timezone.now()).start
    members = list(
        User.objects.filter(group__in=owned)
        .select_related("group")
        .annotate(live_keys=Count("keys", filter=Q(keys__revoked_at=None)))
        .order_by("username")[:500]
    )
    tokens = dict(
        UsageHour.objects.filter(user_id__in=[m.pk for m in members], hour__gte=since)
        .values_list("user_id")
        .annotate(sum=Sum(F("prompt_tokens") + F("completion_tokens")))
    )
    given: dict[int, list[str]] = {}
    for row in LimitRow.objects.filter(user__in=members).order_by("name"):
        if row.user_id is not None:
            value = value_words(None, row.value) if row.names is None else ", ".join(row.names)
            text = f"{_label(row.name)} {value} ({row.service_class})"
            given.setdefault(row.user_id, []).append(text)
    context = {
        "section": "group",
        "groups": owned,
        "rows": [(m, tokens.get(m.pk, 0), given.get(m.pk, [])) for m in members],
        "form": form or DivideForm(),
        "invite_form": invite_form(owned),
        "links": Invite.objects.filter(
            group__in=owned, revoked_at=None, ends_at__gt=timezone.now()
        ).select_related("group", "made_by")[:SHOWN],
    }
    return render(request, "group/index.html", context, status=status)


@require_POST
@login_required
def divide(request: HttpRequest) -> HttpResponse:
    """Give a member of one's own group a limit, or take it away."""
    form = DivideForm(request.POST)
    if not form.is_valid():
        return _group_page(request, form, status=400)
    member = get_object_or_404(User, pk=form.cleaned_data["member"], group__owners=_person(request))
    try:
        groups.divide(
            by=_person(request),
            member=member,
            service_class=form.cleaned_data["service_class"],
            name=form.cleaned_data["name"],
            value=form.cleaned_data["value"],
        )
    except ValidationError as error:
        _tell(form, error)
        return _group_page(request, form, status=400)
    messages.success(
        request, _("In force for %(username)s within 5 s") % {"username": member.username}
    )
    return redirect("group")
