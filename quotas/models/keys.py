"""Keys: what opens the gateway. The secret itself is never stored."""

from __future__ import annotations

import datetime as dt

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from quotas.models.audit import audited
from quotas.models.identity import new_key_id
from quotas.models.people import User


class ServiceClass(models.TextChoices):
    """Interactive goes first; batch stands as if it had arrived ten minutes later."""

    INTERACTIVE = "interactive", "Interactive"
    BATCH = "batch", "Batch"


@audited("digest", "last_used_at")
class ApiKey(models.Model):
    """A secret with an owner, a name and a class of service.

    Its public id, limits and usage outlive a rotation; revoking it is final.
    """

    class Kind(models.TextChoices):
        ORDINARY = "ordinary", "Ordinary"
        APPLICATION = "application", "Application (its header names the end user)"

    public_id = models.CharField(
        max_length=24, unique=True, default=new_key_id, editable=False, verbose_name="key id"
    )
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100)
    service_class = models.CharField(max_length=12, choices=ServiceClass.choices)
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.ORDINARY)
    end_user_header = models.CharField(
        max_length=64,
        blank=True,
        help_text="Application keys only: the request header that names the end user.",
    )
    may_manage = models.BooleanField(
        default=False,
        db_default=False,
        verbose_name="may manage",
        help_text="In the portal's API it may do what its owner may, not only read.",
    )
    digest = models.CharField(max_length=64, unique=True, editable=False)
    masked = models.CharField(max_length=24, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: never.")
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "key"
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                name="apikey_one_live_name_per_owner",
                fields=["owner", "name"],
                condition=Q(revoked_at__isnull=True),
                violation_error_message="You already have a key of this name.",
            ),
            models.CheckConstraint(
                name="apikey_class_is_known",
                condition=Q(service_class__in=ServiceClass.values),
            ),
            models.CheckConstraint(
                name="apikey_header_only_on_application_keys",
                condition=Q(kind="application") | Q(end_user_header=""),
                violation_error_message="Only an application key may name an end-user header.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.masked})"

    def state(self, now: dt.datetime) -> str:
        """Return live, disabled, expired or revoked; says nothing of its owner."""
        if self.revoked_at is not None:
            return "revoked"
        if self.disabled_at is not None:
            return "disabled"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "live"


class OldSecret(models.Model):
    """A rotated key's previous secret, which still opens the gateway until the shown time."""

    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="old_secrets")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    masked = models.CharField(max_length=24, editable=False)
    valid_until = models.DateTimeField()
    rotated_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.masked} until {self.valid_until:%Y-%m-%d %H:%M}"
