"""Forms of asking for more, and of deciding."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from quotas import limits as limit_specs
from quotas.counts import read_count
from quotas.limits import LimitSpec
from quotas.models import ServiceClass, User
from quotas.services import limits


def choices() -> list[tuple[str, str]]:
    """Return the limits one can ask more of."""
    return [
        (spec.name, f"{spec.label} ({spec.unit})")
        for spec in limit_specs.offered()
        if not spec.is_list
    ]


def present(person: User, service_class: str) -> dict[str, tuple[int | None, str]]:
    """Return what a person has now, and the level it comes from, by limit."""
    return {
        found.spec.name: (found.value, found.level)
        for found in limits.effective(user=person, service_class=service_class)
        if found.per == found.spec.usual_per("user")
    }


def value_words(spec: LimitSpec | None, value: int | None) -> str:
    """Return a value as people read it; what nobody set may still be bounded by the model."""
    if value is not None:
        return f"{value:,}"
    return gettext("by slots") if spec and spec.name == "in_flight" else gettext("no limit")


def choices_of(person: User) -> list[tuple[str, str]]:
    """Return the limits one can ask more of, each with what the person has now."""
    now = {one: present(person, one) for one in ServiceClass.values}
    found = []
    for name, _label in choices():
        spec = limit_specs.BY_NAME[name]
        has = {
            service_class: value_words(spec, now[service_class][name][0])
            for service_class in spec.classes
            if name in now[service_class]
        }
        each = [f"{service_class} {value}" for service_class, value in has.items()]
        told = each if len(set(has.values())) > 1 else list(has.values())[:1]
        found.append((name, f"{spec.label}: {', '.join(told)}"))
    return found


class CountField(forms.IntegerField):
    """A whole number as people write it: 40,000, 200k, 1.5M."""

    widget = forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"})

    def to_python(self, value: Any) -> int | None:
        if value in self.empty_values:
            return None
        try:
            return read_count(str(value))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None


def _days(days: int) -> str:
    return (timezone.localdate() + dt.timedelta(days=days)).isoformat()


class AskForm(forms.Form):
    """What somebody wants more of, until when, and why."""

    service_class = forms.ChoiceField(label=_("Class"), choices=ServiceClass.choices)
    name = forms.ChoiceField(label=_("Limit, and what you have now"))
    value = CountField(label=_("New value"), min_value=0)
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

    def __init__(self, *args: Any, person: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].choices = choices_of(person)  # type: ignore[attr-defined]
        self.fields["until"].initial = _days(30)

    @property
    def ends_at(self) -> dt.datetime:
        """Return the first instant after the chosen day."""
        day = self.cleaned_data["until"] + dt.timedelta(days=1)
        return dt.datetime.combine(day, dt.time(), tzinfo=timezone.get_current_timezone())


class DecideForm(forms.Form):
    """The answer: what was asked or another value, with a word to the person."""

    value = CountField(label=_("Give"), min_value=0)
    answer = forms.CharField(label=_("Answer"), required=False, max_length=2000)


class DivideForm(forms.Form):
    """A member's part of the group's quota; empty takes it away again."""

    member = forms.IntegerField(widget=forms.HiddenInput)
    service_class = forms.ChoiceField(label=_("Class"), choices=ServiceClass.choices)
    name = forms.ChoiceField(label=_("Limit"))
    value = CountField(label=_("Value"), min_value=0, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].choices = choices()  # type: ignore[attr-defined]
