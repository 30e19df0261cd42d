"""What may be tried: the numbers an administrator can set. Empty means as it is."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Sum
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas.models import UsageHour

MINUTE_MS = 60_000
DAYS = ((1, _("the last day")), (7, _("the last 7 days")), (30, _("the last 30 days")))


def used_models() -> list[str]:
    """Return the models asked for in the last thirty days, the most used first."""
    since = timezone.now() - dt.timedelta(days=30)
    counted = UsageHour.objects.filter(hour__gte=since).values("model").annotate(n=Sum("requests"))
    return [row["model"] for row in counted.order_by("-n", "model")]


def _number(label: Any, help_text: Any, least: int = 1, most: int = 4096) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, help_text=help_text, required=False, min_value=least, max_value=most
    )


class TryForm(forms.Form):
    """A model, a time, and what to change; the names of numbers are those of `simulate --try`."""

    model = forms.ChoiceField(label=_("Model"))
    days = forms.TypedChoiceField(label=_("Requests of"), choices=DAYS, initial=7, coerce=int)
    slots = _number(_("Slots of the model"), _("As if the card could do more or less at once."))
    batch_slots = _number(
        _("Slots for batch while somebody chats"), _("A quarter of the slots by default.")
    )
    batch_slots_idle = _number(
        _("Slots for batch while nobody chats"), _("All but one by default.")
    )
    batch_idle_after_s = _number(
        _("Seconds without a chat until batch may borrow"), _("60 by default."), most=86_400
    )
    key_cap = _number(_("Chats of one key at once"), _("Two by default."))
    user_cap = _number(
        _("Chats of one person at once"), _("Half of the slots, at most four, by default.")
    )
    batch_cap = _number(_("Batch requests of one person at once"), _("Two by default."))
    handicap_min = _number(
        _("Minutes that batch stands behind chat"), _("Ten. Only to try: no setting changes it."),
        least=0, most=1_440,
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(name, name) for name in used_models()]
        self.fields["model"].choices = choices  # type: ignore[attr-defined]

    @property
    def changes(self) -> tuple[tuple[str, int], ...]:
        """Return what was filled in, in the words of the command."""
        given = {
            name: value
            for name, value in self.cleaned_data.items()
            if name not in ("model", "days") and value is not None
        }
        if "handicap_min" in given:
            given["handicap_ms"] = given.pop("handicap_min") * MINUTE_MS
        return tuple(given.items())

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors and not self.changes:
            raise ValidationError(_("Fill in at least one number to try."))
        return cleaned
