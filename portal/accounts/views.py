"""A person's own settings: zone, theme, mail; and where sign-in is managed."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from portal.accounts.forms import ProfileForm
from quotas.models import User


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def profile(request: HttpRequest) -> HttpResponse:
    """Show and save what a person may set for themselves."""
    person = cast("User", request.user)
    form = ProfileForm(request.POST or None, instance=person)
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, "Saved")
        return redirect("profile")
    context = {"section": "profile", "form": form, "person": person}
    return render(request, "account/profile.html", context, status=400 if form.errors else 200)
