"""Forms about keys; the services check everything again, these only ask well."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas.models import ApiKey, Pool, ServiceClass

OVERLAPS = ((0, "none: the old secret stops now"), (1, "1 hour"), (24, "24 hours"),
            (168, "7 days"))  # fmt: skip


def lifetimes(now: dt.datetime) -> list[tuple[int, str]]:
    """Return the offered lifetimes in days, none longer than the installation allows."""
    longest = settings.KEY_LONGEST_DAYS
    days = sorted({one for one in (30, 90, 365) if one < longest} | {longest})
    return [
        (one, f"in {one} days, {now + dt.timedelta(days=one):%-d %b %Y}"
              + (" (longest)" if one == longest else ""))
        for one in days
    ]  # fmt: skip


class KeyForm(forms.Form):
    """What a new key needs to know."""

    name = forms.CharField(
        max_length=100,
        help_text=_("What program is it for? Shown in your usage."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    service_class = forms.ChoiceField(
        label=_("Class"), choices=ServiceClass.choices, initial="interactive"
    )
    days = forms.TypedChoiceField(label=_("Expires"), coerce=int)
    model = forms.ChoiceField(label=_("Models"), required=False)
    in_flight = forms.TypedChoiceField(
        label=_("In flight, at most"), coerce=int, required=False, empty_value=None
    )

    may_manage = forms.BooleanField(
        label=_("May also manage"),
        required=False,
        help_text=_(
            "For scripts that rotate keys or set limits through the portal's API. Other keys "
            "only read there."
        ),
    )

    def __init__(self, *args: Any, cap: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = lifetimes(timezone.localtime())
        self.fields["days"].choices = choices  # type: ignore[attr-defined]
        self.fields["days"].initial = min(90, settings.KEY_LONGEST_DAYS)
        names = list(Pool.objects.values_list("name", flat=True))
        self.fields["model"].choices = [  # type: ignore[attr-defined]
            ("", f"all that you may use ({len(names)})"), *((name, name) for name in names)
        ]  # fmt: skip
        self.fields["in_flight"].choices = [  # type: ignore[attr-defined]
            ("", f"{cap} (your limit)"), *((n, str(n)) for n in range(cap - 1, 0, -1))
        ]  # fmt: skip

    @property
    def lifetime(self) -> dt.timedelta:
        """Return the chosen lifetime."""
        return dt.timedelta(days=self.cleaned_data["days"])


class EditForm(forms.Form):
    """What may change about a key while its secret stays."""

    name = forms.CharField(max_length=100, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    days = forms.TypedChoiceField(label=_("Expires"), coerce=int, required=False, empty_value=None)

    def __init__(self, *args: Any, key: ApiKey, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].initial = key.name
        keep = f"as now, {key.expires_at:%-d %b %Y}" if key.expires_at else "as now, never"
        self.fields["days"].choices = [  # type: ignore[attr-defined]
            ("", keep), *lifetimes(timezone.localtime())
        ]  # fmt: skip


class RotateForm(forms.Form):
    """How long the old secret still works."""

    overlap = forms.TypedChoiceField(
        label=_("The old secret works for"), coerce=int, choices=OVERLAPS, initial=24
    )
