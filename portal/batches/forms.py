"""Forms about batches; the services check everything again."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.batches import webhooks
from portal.files import config
from portal.openai_api.errors import BadRequest
from quotas.models import ApiKey, User

WINDOWS = (("1h", "1 hour"), ("6h", "6 hours"), ("24h", "24 hours"), ("3d", "3 days"),
           ("7d", "7 days"))  # fmt: skip


def usable_keys(owner: User) -> QuerySet[ApiKey]:
    """Return the person's keys that open something, batch keys first."""
    now = timezone.now()
    live = Q(expires_at__isnull=True) | Q(expires_at__gt=now)
    return owner.keys.filter(live, revoked_at__isnull=True, disabled_at__isnull=True).order_by(
        "service_class", "name"
    )


class KeyChoice(forms.ModelChoiceField):  # type: ignore[type-arg]  # plain at run time
    """A choice of own keys, named as their owner knows them."""

    def label_from_instance(self, obj: Any) -> str:
        """Return name and class."""
        return f"{obj.name} ({obj.service_class})"


class _WithKey(forms.Form):
    key = KeyChoice(queryset=ApiKey.objects.none(), to_field_name="public_id", empty_label=None)

    def __init__(self, *args: Any, owner: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["key"].queryset = usable_keys(owner)  # type: ignore[attr-defined]


class StartForm(_WithKey):
    """Under which key, and for how long at most."""

    window = forms.ChoiceField(label="Give up after", choices=WINDOWS, initial="24h")
    webhook_url = forms.CharField(
        label="Tell this address of the end", max_length=webhooks.LENGTH_MOST, required=False
    )

    def __init__(self, *args: Any, owner: User, **kwargs: Any) -> None:
        super().__init__(*args, owner=owner, **kwargs)
        if not settings.WEBHOOK_HOSTS:
            self.fields.pop("webhook_url", None)

    def clean_webhook_url(self) -> str:
        """Refuse what may not be called."""
        try:
            return webhooks.check(self.cleaned_data["webhook_url"].strip())
        except BadRequest as error:
            raise forms.ValidationError(str(error)) from error


class UploadForm(StartForm):
    """A file of lines."""

    file = forms.FileField(
        label="Lines, a JSONL file",
        widget=forms.FileInput(attrs={"accept": ".jsonl,.txt,.ndjson"}),
        error_messages={"empty": "The file is empty."},
    )
    field_order = ("file", "key", "window")

    def __init__(self, *args: Any, owner: User, **kwargs: Any) -> None:
        super().__init__(*args, owner=owner, **kwargs)
        self.fields.pop("webhook_url", None)  # asked for when the lines have been checked

    limits = property(lambda self: config.limits())


class AnotherKeyForm(_WithKey):
    """Which key a batch goes on with."""
