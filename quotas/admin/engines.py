"""Cards, pools and engine replicas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldBooleanSwitchWidget

from quotas import tasks
from quotas.admin.base import BooksAdmin, action, display
from quotas.models import Card, Pool, Replica, User
from quotas.services import capacity, engines


class ReplicaForm(forms.ModelForm):  # type: ignore[type-arg]
    """Checks the address as the command does; a key is taken and never shown."""

    api_key = forms.CharField(
        required=False,
        label="its own key",
        max_length=512,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="Only for an engine that was started with --api-key. It is kept sealed, sent to "
        "this engine only and never shown again. Empty: the key it has stays. Another host in the "
        "address forgets it.",
    )
    forget_api_key = forms.BooleanField(
        required=False, label="forget its key", widget=UnfoldBooleanSwitchWidget()
    )

    class Meta:
        model = Replica
        fields: ClassVar[str] = "__all__"

    def clean_url(self) -> str:
        return engines.check_url(self.cleaned_data["url"])

    def _post_clean(self) -> None:
        """Put the key in its place once the other fields are on the replica."""
        before = self.instance.url
        super()._post_clean()  # type: ignore[misc]  # Django's own, not in the stubs
        given = self.cleaned_data.get("api_key") or None
        if given is None and self.cleaned_data.get("forget_api_key"):
            given = ""
        try:
            engines.set_api_key(self.instance, given, moved_from=before)
        except ValidationError as error:
            self.add_error(None, error)


class PoolForm(forms.ModelForm):  # type: ignore[type-arg]
    """Refuses a name that would mean two models."""

    class Meta:
        model = Pool
        fields: ClassVar[str] = "__all__"

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        if not self.errors:
            pool = Pool(pk=self.instance.pk, name=found["name"], aliases=found["aliases"] or [])
            engines.check_aliases(pool)
        return found


@admin.register(Replica)
class ReplicaAdmin(BooksAdmin[Replica]):
    """Engine servers; changes are in use within 5 seconds."""

    form = ReplicaForm
    list_display = ["name", "pool", "url", "kind", "slots", "shown_state", "card"]
    list_filter = ["state", "kind", "pool", "card"]
    list_select_related = ["pool", "card"]
    search_fields = ["name", "url", "public_id", "pool__name"]
    autocomplete_fields = ["pool", "card"]
    readonly_fields = ["key_set_at", "public_id", "added_at"]
    actions = ["drain", "activate", "disable", "measure", "measure_quickly", "measure_later"]

    @display(
        description="state", label={"active": "success", "draining": "warning", "disabled": ""}
    )
    def shown_state(self, replica: Replica) -> str:
        return replica.state

    @action(description="Drain: finish what runs, take nothing new")
    def drain(self, request: HttpRequest, chosen: QuerySet[Replica]) -> None:
        self._set(request, chosen, Replica.State.DRAINING)

    @action(description="Activate")
    def activate(self, request: HttpRequest, chosen: QuerySet[Replica]) -> None:
        self._set(request, chosen, Replica.State.ACTIVE)

    @action(description="Disable")
    def disable(self, request: HttpRequest, chosen: QuerySet[Replica]) -> None:
        self._set(request, chosen, Replica.State.DISABLED)

    @action(description="Measure its capacity: nobody else is served meanwhile (an hour or so)")
    def measure(self, request: HttpRequest, chosen: QuerySet[Replica]) -> None:
        self._measure(request, chosen, {})

    @action(description="Measure its capacity quickly: short prompts, three repeats (minutes)")
    def measure_quickly(self, request: HttpRequest, chosen: QuerySet[Replica]) -> None:
        self._measure(request, chosen, capacity.QUICK)

    @action(description="Measure its capacity in ten minutes, announced on the status page")
    def measure_later(self, request: HttpRequest, chosen: QuerySet[Replica]) -> None:
        self._measure(request, chosen, {}, in_s=600.0)

    def _measure(
        self,
        request: HttpRequest,
        chosen: QuerySet[Replica],
        wishes: Mapping[str, Any],
        in_s: float = 0.0,
    ) -> None:
        person = request.user if isinstance(request.user, User) else None
        for replica in chosen:
            try:
                run = capacity.request(
                    replica=replica, requested_by=person, wishes=wishes, in_s=in_s
                )
            except ValidationError as error:
                self.message_user(request, error.messages[0], messages.ERROR)
                continue
            transaction.on_commit(partial(tasks.measure.delay, run.public_id))
            self.message_user(request, f"{replica.name} is being measured: see Capacity runs.")

    def _set(self, request: HttpRequest, chosen: QuerySet[Replica], state: str) -> None:
        for replica in chosen:
            engines.set_state(replica=replica, state=state)
        self.message_user(request, "In force on every gateway within 5 seconds.")


@admin.register(Pool)
class PoolAdmin(BooksAdmin[Pool]):
    """Models and how interactive and batch share them."""

    form = PoolForm
    list_display = ["name", "aliases", "batch_slots", "batch_slots_idle", "max_output_tokens"]
    search_fields = ["name", "aliases"]


@admin.register(Card)
class CardAdmin(BooksAdmin[Card]):
    """Accelerators."""

    list_display = ["name", "profile", "memory_mib", "sharing_mode"]
    list_filter = ["sharing_mode"]
    search_fields = ["name", "profile"]
    readonly_fields = ["public_id"]
