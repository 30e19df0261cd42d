"""Files for administrators: names, owners, sizes and ends; never contents."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from portal.files.models import StoredFile


@admin.register(StoredFile)
class StoredFileAdmin(ModelAdmin):  # type: ignore[misc]
    """All stored files."""

    list_display = ("filename", "owner", "purpose", "size", "lines", "created_at", "expires_at")
    list_filter = ("purpose",)
    search_fields = ("public_id", "filename", "owner__username")
    list_select_related = ("owner",)
    exclude = ("problems",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Files come from their owners."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: StoredFile | None = None) -> bool:
        """A file is what it is."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: StoredFile | None = None) -> bool:
        """Its owner deletes it, or its expiry."""
        return False
