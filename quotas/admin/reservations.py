"""Slots reserved for groups, by calendar."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone

from quotas.admin.base import BooksAdmin, display
from quotas.models import Reservation
from quotas.occurrences import present
from quotas.reserved import times
from quotas.services import books, reservations
from quotas.services.engines import NO_KEYS


class ReservationForm(forms.ModelForm):  # type: ignore[type-arg]
    """Refuses what the service refuses, beside the field it is about."""

    class Meta:
        model = Reservation
        fields: ClassVar[str] = "__all__"

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        if not self.errors:
            wanted = Reservation(pk=self.instance.pk, **found)
            # The page saves in the same transaction, so the lock taken here is held until then.
            with books.writing(NO_KEYS):
                try:
                    reservations.check(wanted)
                except ValidationError as error:
                    self.add_error(None, error)
        return found


@admin.register(Reservation)
class ReservationAdmin(BooksAdmin[Reservation]):
    """Who has slots of which model for themselves, and when; in force within 5 seconds."""

    form = ReservationForm
    list_display = ["group", "pool", "slots", "starts_at", "ends_at", "weeks", "shown_state"]
    list_filter = ["pool", "group"]
    list_select_related = ["group", "pool"]
    search_fields = ["group__name", "pool__name", "note"]
    autocomplete_fields = ["group", "pool"]
    date_hierarchy = "starts_at"

    @display(description="state", label={"running": "success", "to come": "info", "over": ""})
    def shown_state(self, reservation: Reservation) -> str:
        now = timezone.now()
        soonest = present(times(reservation), now)
        if soonest is None:
            return "over"
        return "running" if soonest.starts_at <= now else "to come"

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"weeks": 1, **super().get_changeform_initial_data(request)}
