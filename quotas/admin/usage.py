"""Usage and the audit trail: to look at, never to change."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from pghistory.admin import EventsAdmin
from pghistory.models import Events
from unfold.contrib.filters.admin import RangeDateTimeFilter

from quotas.admin.base import ReadOnlyAdmin, display
from quotas.models import UsageEvent, UsageHour


@admin.register(UsageEvent)
class UsageEventAdmin(ReadOnlyAdmin[UsageEvent]):
    """Single requests. Rows are written by the usage writer alone and hold no prompt text."""

    list_display = [
        "request_id", "arrived_at", "key_id", "model", "service_class", "outcome", "status",
        "prompt_tokens", "completion_tokens", "queue_wait_ms", "ttft_ms", "duration_ms",
    ]  # fmt: skip
    list_filter = [
        "service_class", "outcome", ("arrived_at", RangeDateTimeFilter), "estimated",
    ]  # fmt: skip
    list_filter_submit = True
    search_fields = ["=request_id", "=key_id", "=batch_id", "=client_request_id"]
    search_help_text = "A whole request id, key id, batch id or client request id."
    ordering = ["-arrived_at"]
    # Counting ten million rows for a page number would cost more than the page.
    show_full_result_count = False


@admin.register(UsageHour)
class UsageHourAdmin(ReadOnlyAdmin[UsageHour]):
    """Sums by hour, which every chart and report reads."""

    list_display = [
        "hour", "key_id", "model", "service_class", "requests", "failed", "prompt_tokens",
        "completion_tokens",
    ]  # fmt: skip
    list_filter = ["service_class", ("hour", RangeDateTimeFilter)]
    list_filter_submit = True
    search_fields = ["=key_id", "=batch_id"]
    ordering = ["-hour"]


class AuditAdmin(ReadOnlyAdmin[Events], EventsAdmin):
    """Who changed what, when, from what to what; named in settings as PGHISTORY_ADMIN_CLASS."""

    search_fields = ["pgh_obj_id"]

    def get_list_display(self, request: HttpRequest) -> Any:
        return ["pgh_created_at", "what", "pgh_label", "who", "pgh_diff"]

    @display(description="what")
    def what(self, event: Events) -> str:
        return f"{event.pgh_obj_model} {event.pgh_obj_id}"

    @display(description="who")
    def who(self, event: Events) -> str:
        context = event.pgh_context or {}
        user = context.get("user") if isinstance(context, dict) else None
        return f"user {user}" if user else str(context.get("command", "shell"))
