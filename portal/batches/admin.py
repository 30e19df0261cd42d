"""Batches for administrators: to look at, and to cancel; rows are written by services alone."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from portal.batches import services
from portal.batches.models import BatchItem, BatchJob
from portal.openai_api.errors import ApiError


class ReadOnly:
    """Nothing is added, changed or deleted by hand."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Jobs come from their owners."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """The states are moved by the runner."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Files expire; rows stay."""
        return False


@admin.register(BatchJob)
class BatchJobAdmin(ReadOnly, ModelAdmin):  # type: ignore[misc]
    """All jobs of all people."""

    list_display = (
        "name", "owner", "model", "state", "completed", "failed", "total", "created_at",
        "last_line_at", "wait_code",
    )  # fmt: skip
    list_filter = ("state", "model", "wait_code")
    search_fields = ("public_id", "name", "owner__username", "key__name")
    date_hierarchy = "created_at"
    list_select_related = ("owner",)
    show_full_result_count = False
    actions = ("cancel_them",)

    @admin.action(description="Cancel these batches", permissions=["view"])
    def cancel_them(self, request: HttpRequest, queryset: QuerySet[BatchJob]) -> None:
        """Cancel, each for itself."""
        if not request.user.is_superuser:
            self.message_user(request, "Only a superuser may cancel.", messages.ERROR)
            return
        for job in queryset:
            try:
                services.cancel(job=job)
            except ApiError as error:
                self.message_user(request, f"{job}: {error}", messages.WARNING)


@admin.register(BatchItem)
class BatchItemAdmin(ReadOnly, ModelAdmin):  # type: ignore[misc]
    """Single lines, without their contents."""

    list_display = ("job", "line_no", "custom_id", "state", "attempt", "failures", "problem")
    list_filter = ("state",)
    search_fields = ("job__public_id",)
    list_select_related = ("job",)
    show_full_result_count = False
