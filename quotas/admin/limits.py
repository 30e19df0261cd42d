"""Limits as single rows; the grid with everybody side by side is the portal's quota page."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminSelectWidget

from quotas.admin.base import BooksAdmin, display
from quotas.limits import offered
from quotas.models import LimitRow
from quotas.services import limits

_COLUMNS = [
    "level", "group", "user", "key", "service_class", "name", "per", "value", "names", "ends_at",
    "note",
]  # fmt: skip


class LimitForm(forms.ModelForm):  # type: ignore[type-arg]
    """One row; refuses what cannot bind, and an edit made on a row that changed meanwhile."""

    name = forms.ChoiceField(
        label="Limit",
        choices=lambda: [(spec.name, f"{spec.label}: {spec.help}") for spec in offered()],
        widget=UnfoldAdminSelectWidget(),
    )
    seen_edition = forms.IntegerField(widget=forms.HiddenInput(), required=False)

    class Meta:
        model = LimitRow
        fields: ClassVar[list[str]] = _COLUMNS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["seen_edition"].initial = self.instance.edition

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        if self.errors:
            return found
        row = {name: found.get(name, getattr(self.instance, name)) for name in _COLUMNS}
        holder = limits.Holder(group=row["group"], user=row["user"], key=row["key"])
        if holder.level != row["level"]:
            raise ValidationError("Name exactly the group, user or key the level speaks of.")
        limits.check(
            holder=holder,
            service_class=row["service_class"],
            name=row["name"],
            per=row["per"],
            value=row["value"],
            names=row["names"] or None,
            ends_at=row["ends_at"],
        )
        if self.instance.pk is not None:
            self._refuse_if_changed(found.get("seen_edition"))
        return found

    def _refuse_if_changed(self, seen: int | None) -> None:
        """Hold the row until this edit is committed, and compare it with what was shown."""
        row = LimitRow.objects.select_for_update().filter(pk=self.instance.pk).first()
        if row is None or row.edition != seen:
            raise ValidationError("Somebody changed this limit meanwhile; look again.")
        self.instance.edition = row.edition + 1


@admin.register(LimitRow)
class LimitAdmin(BooksAdmin[LimitRow]):
    """Every limit somebody set. In force on every gateway within 5 seconds."""

    form = LimitForm
    list_display = [
        "name", "service_class", "level", "target", "per", "shown_value", "ends_at", "note",
        "set_at",
    ]  # fmt: skip
    list_filter = ["name", "service_class", "level", "per", "group"]
    list_select_related = ["group", "user", "key"]
    search_fields = ["group__name", "user__username", "key__name", "key__public_id", "note"]
    autocomplete_fields = ["group", "user", "key"]
    fieldsets = [
        (
            "For whom",
            {
                "fields": ["level", "group", "user", "key", "service_class"],
                "description": "The narrowest level that is set wins: key, then user, then group, "
                "then everyone.",
            },
        ),
        ("Limit", {"fields": ["name", "per", "value", "names", "seen_edition"]}),
        ("Until", {"fields": ["ends_at", "note"]}),
    ]

    @display(description="of")
    def target(self, row: LimitRow) -> str:
        return str(row.group or row.user or row.key or "everyone")

    @display(description="value", ordering="value")
    def shown_value(self, row: LimitRow) -> str:
        if row.names is not None:
            return ", ".join(row.names)
        return "no limit" if row.value is None else f"{row.value:,}"

    def get_readonly_fields(self, request: HttpRequest, obj: LimitRow | None = None) -> list[str]:
        fixed = ["level", "group", "user", "key", "service_class", "name", "per"]
        return [] if obj is None else fixed
