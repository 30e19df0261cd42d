"""Forms of asking for more, and of deciding."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas import limits as limit_specs
from quotas.models import ServiceClass


def choices() -> list[tuple[str, str]]:
    """Return the limits one can ask more of."""
    return [
        (spec.name, f"{spec.label} ({spec.unit})")
        for spec in limit_specs.offered()
        if not spec.is_list
    ]


def _days(days: int) -> str:
    return (timezone.localdate() + dt.timedelta(days=days)).isoformat()


class AskForm(forms.Form):
    """What somebody wants more of, until when, and why."""

    service_class = forms.ChoiceField(label=_("Class"), choices=ServiceClass.choices)
    name = forms.ChoiceField(label=_("Limit"))
    value = forms.IntegerField(label=_("New value"), min_value=0)
    until = forms.DateField(
        label=_("Until, that day included"),
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text=_("The raise ends by itself."),
    )
    reason = forms.CharField(
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=_("What for? The people who decide read it."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].choices = choices()  # type: ignore[attr-defined]
        self.fields["until"].initial = _days(30)

    @property
    def ends_at(self) -> dt.datetime:
        """Return the first instant after the chosen day."""
        day = self.cleaned_data["until"] + dt.timedelta(days=1)
        return dt.datetime.combine(day, dt.time(), tzinfo=timezone.get_current_timezone())


class DecideForm(forms.Form):
    """The answer: what was asked or another value, with a word to the person."""

    value = forms.IntegerField(label=_("Give"), min_value=0)
    answer = forms.CharField(label=_("Answer"), required=False, max_length=2000)


class DivideForm(forms.Form):
    """A member's part of the group's quota; empty takes it away again."""

    member = forms.IntegerField(widget=forms.HiddenInput)
    service_class = forms.ChoiceField(label=_("Class"), choices=ServiceClass.choices)
    name = forms.ChoiceField(label=_("Limit"))
    value = forms.IntegerField(label=_("Value"), min_value=0, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].choices = choices()  # type: ignore[attr-defined]
