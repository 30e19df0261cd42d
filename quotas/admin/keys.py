"""Keys: made, disabled and revoked; the secret is on one page once and stored nowhere."""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables
from unfold.widgets import UnfoldAdminSelectWidget

from quotas.admin.base import BooksAdmin, action, display
from quotas.models import ApiKey
from quotas.services import keys

_LIFETIMES = {"30": "30 days", "90": "90 days", "365": "a year", "": "never"}


class NewKeyForm(forms.ModelForm):  # type: ignore[type-arg]
    """What a new key needs; its class cannot be changed later."""

    lifetime = forms.ChoiceField(
        label="Expires after",
        choices=list(_LIFETIMES.items()),
        initial="90",
        required=False,
        widget=UnfoldAdminSelectWidget(),
    )

    class Meta:
        model = ApiKey
        fields: ClassVar[list[str]] = [
            "owner", "name", "service_class", "kind", "end_user_header",
        ]  # fmt: skip


@admin.register(ApiKey)
class ApiKeyAdmin(BooksAdmin[ApiKey]):
    """Every key of everybody."""

    list_display = [
        "name", "owner", "shown_class", "masked", "shown_state", "created_at", "last_used_at",
        "expires_at",
    ]  # fmt: skip
    list_filter = ["service_class", "kind", "owner__group", "revoked_at", "disabled_at"]
    list_select_related = ["owner"]
    search_fields = ["name", "public_id", "owner__username", "masked"]
    search_help_text = "Name, key id, owner, or the characters shown of a key."
    autocomplete_fields = ["owner"]
    readonly_fields = [
        "public_id", "masked", "owner", "service_class", "kind", "may_manage", "created_at",
        "last_used_at", "expires_at", "disabled_at", "revoked_at",
    ]  # fmt: skip
    actions = ["revoke", "disable", "enable"]

    def get_form(
        self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        if obj is None:
            kwargs["form"] = NewKeyForm
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> Any:
        if obj is None:
            return [
                "owner", "name", "service_class", "lifetime", "kind", "end_user_header",
                "may_manage",
            ]  # fmt: skip
        return ["name", "end_user_header", *self.readonly_fields]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        return [] if obj is None else list(self.readonly_fields)

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False  # a key is revoked; its usage keeps its name

    @sensitive_variables("issued")
    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        days = form.cleaned_data["lifetime"]
        issued = keys.issue(
            owner=obj.owner,
            name=obj.name,
            service_class=obj.service_class,
            lifetime=dt.timedelta(days=int(days)) if days else None,
            kind=obj.kind,
            end_user_header=obj.end_user_header,
            may_manage=obj.may_manage,
        )
        # The admin goes on with `obj`: make it the row that was really written.
        obj.__dict__.update(issued.key.__dict__)
        request._issued_secret = issued.secret  # type: ignore[attr-defined]

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the secret on this answer alone: no redirect, no message, no session holds it."""
        secret = getattr(request, "_issued_secret", None)
        context = {**self.admin_site.each_context(request), "key": obj, "secret": secret}
        answer = TemplateResponse(request, "admin/quotas/apikey/issued.html", context)
        answer["Cache-Control"] = "no-store"
        return answer

    @display(
        description="class", ordering="service_class", label={"interactive": "info", "batch": ""}
    )
    def shown_class(self, key: ApiKey) -> str:
        return key.service_class

    @display(
        description="state",
        label={"live": "success", "disabled": "warning", "expired": "", "revoked": "danger"},
    )
    def shown_state(self, key: ApiKey) -> str:
        return key.state(timezone.now())

    @action(description="Revoke for good")
    def revoke(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        for key in chosen:
            keys.revoke(key=key)
        self.message_user(request, "Revoked. Every gateway refuses them within 5 seconds.")

    @action(description="Disable until enabled again")
    def disable(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        self._change(request, chosen, keys.disable, "Disabled within 5 seconds.")

    @action(description="Enable")
    def enable(self, request: HttpRequest, chosen: QuerySet[ApiKey]) -> None:
        self._change(request, chosen, keys.enable, "Enabled within 5 seconds.")

    def _change(
        self, request: HttpRequest, chosen: QuerySet[ApiKey], service: Any, done: str
    ) -> None:
        refused = 0
        for key in chosen:
            try:
                service(key=key)
            except ValidationError:
                refused += 1
        if refused:
            self.message_user(request, f"{refused} are revoked; that is final.", messages.WARNING)
        self.message_user(request, done)
