"""Requests for more and invitations, as lists."""

from __future__ import annotations

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest

from quotas.admin.base import ReadOnlyAdmin, action, display
from quotas.models import Invite, QuotaRequest, User
from quotas.services import invites, requests


@admin.register(QuotaRequest)
class QuotaRequestAdmin(ReadOnlyAdmin[QuotaRequest]):
    """Who asks for more; a different value or an answer is given on the portal's page."""

    list_display = [
        "user", "name", "service_class", "asked", "wanted_until", "shown_state", "granted",
        "granted_until", "decided_by",
    ]  # fmt: skip
    list_filter = ["state", "name", "service_class", "user__group"]
    list_select_related = ["user", "decided_by"]
    search_fields = ["user__username", "reason", "answer"]
    actions = ["approve", "refuse"]

    @display(
        description="state",
        label={"open": "warning", "approved": "success", "refused": "danger", "withdrawn": ""},
    )
    def shown_state(self, request: QuotaRequest) -> str:
        return request.state

    @action(description="Approve as asked")
    def approve(self, request: HttpRequest, chosen: QuerySet[QuotaRequest]) -> None:
        self._decide(request, chosen, is_approved=True)

    @action(description="Refuse")
    def refuse(self, request: HttpRequest, chosen: QuerySet[QuotaRequest]) -> None:
        self._decide(request, chosen, is_approved=False)

    def _decide(
        self, request: HttpRequest, chosen: QuerySet[QuotaRequest], *, is_approved: bool
    ) -> None:
        person = request.user
        assert isinstance(person, User)  # noqa: S101 (the admin lets nobody else in)
        for asked in chosen:
            try:
                if is_approved:
                    requests.approve(request=asked, by=person)
                else:
                    requests.refuse(request=asked, by=person, answer="")
            except ValidationError as error:
                self.message_user(request, f"{asked}: {error.messages[0]}", messages.WARNING)


@admin.register(Invite)
class InviteAdmin(ReadOnlyAdmin[Invite]):
    """Links for courses; they are made on the portal's page, which shows the address once."""

    list_display = ["group", "seats", "taken", "ends_at", "accounts_end_at", "made_by"]
    list_filter = ["group"]
    list_select_related = ["group", "made_by"]
    search_fields = ["group__name"]
    actions = ["revoke"]

    @action(description="Revoke the link")
    def revoke(self, request: HttpRequest, chosen: QuerySet[Invite]) -> None:
        for invite in chosen:
            invites.revoke(invite=invite)
