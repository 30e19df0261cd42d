"""Measured capacity: start, stop, publish and withdraw runs; decisions to read."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from quotas.admin.base import ReadOnlyAdmin, action, display
from quotas.models import CapacityDecision, CapacityRun
from quotas.services import capacity

READ_ONLY = [field.name for field in CapacityRun._meta.fields if field.name != "withdrawn_reason"]


class WithdrawForm(forms.ModelForm):  # type: ignore[type-arg]
    """The one thing that may be written into a run: why it does not hold any more."""

    class Meta:
        model = CapacityRun
        fields: ClassVar[list[str]] = ["withdrawn_reason"]
        help_texts: ClassVar[dict[str, str]] = {
            "withdrawn_reason": "Saying why withdraws the published figures. They stay visible "
            "with this reason and today's date."
        }

    def clean_withdrawn_reason(self) -> str:
        reason = str(self.cleaned_data["withdrawn_reason"]).strip()
        if reason and not self.instance.is_published:
            raise ValidationError("Only published figures can be withdrawn.")
        return reason


@admin.register(CapacityRun)
class CapacityRunAdmin(ReadOnlyAdmin[CapacityRun]):
    """Runs are made by measuring; here they are published, withdrawn and stopped."""

    form = WithdrawForm
    list_display = ["asked_at", "replica_name", "shown_state", "progress", "shown", "sentence"]
    list_filter = ["state", "replica_name", "pool_name"]
    search_fields = ["replica_name", "pool_name", "public_id"]
    readonly_fields = READ_ONLY
    actions = ["publish", "stop"]
    list_before_template = "admin/quotas/capacityrun/how.html"

    def has_change_permission(self, request: HttpRequest, obj: CapacityRun | None = None) -> bool:
        return bool(request.user.has_perm("quotas.change_capacityrun"))

    @display(
        description="state",
        label={"complete": "success", "running": "info", "void": "danger", "failed": "danger",
               "partial": "warning", "planned": "info"},
    )  # fmt: skip
    def shown_state(self, run: CapacityRun) -> str:
        return run.state

    @display(description="steps")
    def progress(self, run: CapacityRun) -> str:
        return f"{run.steps_done} of {run.steps_total}" if run.steps_total else ""

    @display(description="shown to people")
    def shown(self, run: CapacityRun) -> str:
        if run.withdrawn_at:
            return f"withdrawn {run.withdrawn_at:%Y-%m-%d}"
        return f"since {run.published_at:%Y-%m-%d}" if run.published_at else ""

    @action(description="Publish: show its figures to everybody")
    def publish(self, request: HttpRequest, chosen: QuerySet[CapacityRun]) -> None:
        for run in chosen:
            try:
                capacity.publish(run=run, by=_person(request))
            except ValidationError as error:
                self.message_user(request, f"{run}: {error.messages[0]}", messages.ERROR)
            else:
                self.message_user(request, f"{run} is published.")

    @action(description="Stop: give the card back, keep what was measured")
    def stop(self, request: HttpRequest, chosen: QuerySet[CapacityRun]) -> None:
        for run in chosen:
            capacity.stop(run=run)
        self.message_user(request, "The card is back within 5 seconds.")

    def save_model(self, request: HttpRequest, obj: CapacityRun, form: Any, change: bool) -> None:
        reason = form.cleaned_data["withdrawn_reason"]
        if reason:
            run = CapacityRun.objects.get(pk=obj.pk)
            capacity.withdraw(run=run, reason=reason, by=_person(request))


@admin.register(CapacityDecision)
class CapacityDecisionAdmin(ReadOnlyAdmin[CapacityDecision]):
    """What a week's waiting was for, and what would end it."""

    list_display = ["date", "pool", "blocker", "action", "replicas_needed"]
    list_filter = ["pool", "blocker"]
    search_fields = ["pool", "action"]


def _person(request: HttpRequest) -> Any:
    return request.user if request.user.is_authenticated else None
