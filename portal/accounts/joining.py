"""Joining a group by an invitation's link, and making such links."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, cast

from allauth.account.adapter import get_adapter
from allauth.core.ratelimit import consume
from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import password_validation
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from quotas.models import Group, Invite, User
from quotas.services import invites


class JoinForm(forms.Form):
    """What a new member chooses."""

    username = forms.CharField(
        max_length=150, label="User name", widget=forms.TextInput({"autocomplete": "username"})
    )
    email = forms.EmailField(label="E-mail", widget=forms.EmailInput({"autocomplete": "email"}))
    password = forms.CharField(widget=forms.PasswordInput({"autocomplete": "new-password"}))

    def clean_password(self) -> str:
        """Refuse passwords that are too easy."""
        password: str = self.cleaned_data["password"]
        name = self.cleaned_data.get("username", "")
        password_validation.validate_password(password, User(username=name))
        return password


class InviteForm(forms.Form):
    """How many may join, and until when."""

    group = forms.ModelChoiceField(queryset=Group.objects.none())
    seats = forms.IntegerField(label="People, at most", min_value=1, max_value=1000, initial=20)
    days = forms.IntegerField(
        label="The link works for, days", min_value=1, max_value=366, initial=14
    )
    account_days = forms.IntegerField(
        label="The accounts end after, days", min_value=1, max_value=1830, required=False,
        help_text="Empty: they stay.",
    )  # fmt: skip


def invite_form(groups: Iterable[Group], data: Any = None) -> InviteForm:
    """Return the form for links into these groups."""
    form = InviteForm(data)
    field: Any = form.fields["group"]
    field.queryset = Group.objects.filter(pk__in=[group.pk for group in groups])
    field.initial = field.queryset.first()
    return form


@require_http_methods(["GET", "HEAD", "POST"])
def join(request: HttpRequest, token: str) -> HttpResponse:
    """Show what the link is for, and make the account."""
    invite = invites.find(token=token)
    if invite is None:
        return render(request, "account/join_over.html", {"section": "login"}, status=404)
    form = JoinForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        limited = consume(request, action="signup")
        if not limited:
            return render(request, "429.html", status=429)
        try:
            user = invites.accept(token=token, **form.cleaned_data)
        except ValidationError as error:
            form.add_error(None, " ".join(error.messages))
        else:
            get_adapter(request).login(request, user)
            return redirect("dashboard")
    context = {"section": "login", "form": form, "invite": invite}
    response = render(request, "account/join.html", context, status=400 if form.errors else 200)
    response["Referrer-Policy"] = "no-referrer"
    return response


@require_POST
@login_required
def invite(request: HttpRequest) -> HttpResponse:
    """Make a link for one of the person's own groups and show it once."""
    person = cast("User", request.user)
    groups = list(Group.objects.all() if person.is_staff else person.owned_groups.all())
    if not groups:
        raise Http404
    form = invite_form(groups, request.POST)
    if not form.is_valid():
        return render(request, "group/invite.html", {"form": form}, status=400)
    now, data = timezone.now(), form.cleaned_data
    ends = data["account_days"]
    made = invites.make(
        group=data["group"],
        seats=data["seats"],
        ends_at=now + dt.timedelta(days=data["days"]),
        by=person,
        accounts_end_at=now + dt.timedelta(days=ends) if ends else None,
    )
    address = settings.PUBLIC_URL + reverse("join", args=[made.token])
    response = render(request, "group/invite.html", {"made": made, "address": address})
    response["Cache-Control"] = "no-store"
    return response


@require_POST
@login_required
def stop(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop a link into one of the person's own groups; who joined by it stays."""
    person = cast("User", request.user)
    mine = Invite.objects.all() if person.is_staff else Invite.objects.filter(group__owners=person)
    invites.revoke(invite=get_object_or_404(mine, pk=pk))
    messages.success(request, _("The link is stopped; who joined by it stays"))
    return redirect("group")
