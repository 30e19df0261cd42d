"""Announcements in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from portal.announcements.models import Announcement


@admin.register(Announcement)
class AnnouncementAdmin(ModelAdmin):  # type: ignore[misc]
    """Write, change and end what every page says."""

    list_display = ["text", "kind", "shown_from", "shown_until", "starts_at", "author"]
    list_filter = ["kind"]
    search_fields = ["text"]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Keep who wrote it."""
        if not change:
            obj.author = request.user
        super().save_model(request, obj, form, change)
