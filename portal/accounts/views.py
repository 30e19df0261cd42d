"""A person's own settings: zone, theme, mail; and where sign-in is managed."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_safe

from portal.accounts.forms import ProfileForm
from quotas.models import User
from quotas.services import privacy


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def profile(request: HttpRequest) -> HttpResponse:
    """Show and save what a person may set for themselves."""
    person = cast("User", request.user)
    form = ProfileForm(request.POST or None, instance=person)
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, _("Saved"))
        return redirect("profile")
    context = {
        "section": "profile",
        "form": form,
        "person": person,
        "owns_groups": person.owned_groups.exists(),
    }
    return render(request, "account/profile.html", context, status=400 if form.errors else 200)


@require_safe
@login_required
def my_data(request: HttpRequest) -> JsonResponse:
    """Hand over what the books hold about a person; single requests are a CSV of their own."""
    body = privacy.my_data(user=cast("User", request.user))
    response = JsonResponse(body, encoder=DjangoJSONEncoder, json_dumps_params={"indent": 2})
    response["Content-Disposition"] = 'attachment; filename="my-data.json"'
    return response
