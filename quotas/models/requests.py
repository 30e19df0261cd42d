"""Requests for more, and invitations to a course."""

from __future__ import annotations

import secrets

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from quotas.models.audit import audited
from quotas.models.keys import ServiceClass
from quotas.models.limits import Per
from quotas.models.people import Group, User


@audited()
class QuotaRequest(models.Model):
    """Somebody asks for a larger limit until a date, and why."""

    class State(models.TextChoices):
        OPEN = "open", "Open"
        APPROVED = "approved", "Approved"
        REFUSED = "refused", "Refused"
        WITHDRAWN = "withdrawn", "Withdrawn"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="quota_requests")
    service_class = models.CharField(max_length=12, choices=ServiceClass.choices)
    name = models.CharField(max_length=32, verbose_name="limit")
    per = models.CharField(max_length=8, choices=Per.choices)
    asked = models.PositiveBigIntegerField()
    reason = models.TextField(max_length=2000)
    wanted_until = models.DateTimeField()
    state = models.CharField(max_length=12, choices=State.choices, default=State.OPEN)
    granted = models.PositiveBigIntegerField(null=True, blank=True)
    granted_until = models.DateTimeField(null=True, blank=True)
    answer = models.TextField(max_length=2000, blank=True)
    asked_at = models.DateTimeField(auto_now_add=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.SET_NULL, related_name="quota_decisions"
    )

    class Meta:
        ordering = ["-asked_at"]
        constraints = [
            models.UniqueConstraint(
                name="quota_request_one_open_per_limit",
                fields=["user", "service_class", "name", "per"],
                condition=Q(state="open"),
                violation_error_message="You already asked for this; that request is open.",
            ),
            models.CheckConstraint(
                name="quota_request_decided_has_a_time",
                condition=Q(state="open") ^ Q(decided_at__isnull=False),
            ),
            models.CheckConstraint(
                name="quota_request_approved_has_a_grant",
                condition=~Q(state="approved")
                | Q(granted__isnull=False, granted_until__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user}: {self.name} {self.asked} ({self.state})"


def new_token() -> str:
    """Return the secret part of an invitation's address."""
    return secrets.token_urlsafe(24)


@audited("token_digest")
class Invite(models.Model):
    """A link by which up to N people make themselves an account in a group, for a time."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="invites")
    token_digest = models.CharField(max_length=64, unique=True, editable=False)
    seats = models.PositiveIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Most people who may join by this link.",
    )
    taken = models.PositiveIntegerField(default=0, editable=False)
    ends_at = models.DateTimeField(help_text="The link works until then.")
    accounts_end_at = models.DateTimeField(
        null=True, blank=True, help_text="The accounts made by it stop then; empty: never."
    )
    made_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL)
    made_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "invitation"
        ordering = ["-made_at"]
        constraints = [
            models.CheckConstraint(
                name="invite_never_gives_more_seats", condition=Q(taken__lte=F("seats"))
            ),
        ]

    def __str__(self) -> str:
        return f"{self.group}: {self.taken} of {self.seats}"
