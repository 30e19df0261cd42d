"""The first page after sign-in: my work on the card."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from portal.status.views import reading_for


@require_safe
@login_required
def dashboard(request: HttpRequest) -> HttpResponse:
    """Show what I run, what I wait for, and how much I may still use."""
    context = {"section": "dashboard", "card": reading_for(request)}
    return render(request, "home/dashboard.html", context)
