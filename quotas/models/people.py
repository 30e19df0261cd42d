"""People and the group whose limits they share."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from quotas.models.audit import audited


@audited()
class Group(models.Model):
    """A research group, course or project; a user belongs to at most one."""

    name = models.CharField(max_length=100, unique=True)
    is_active = models.BooleanField(
        default=True, help_text="Off: every key of every member stops within seconds."
    )
    owners = models.ManyToManyField(
        "quotas.User",
        related_name="owned_groups",
        blank=True,
        help_text="May divide the group's quota among its members.",
    )
    note = models.TextField(blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


@audited("password", "last_login")
class User(AbstractUser):
    """A person with an account."""

    group = models.ForeignKey(
        Group, null=True, blank=True, on_delete=models.SET_NULL, related_name="members"
    )
    share = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
        help_text="Weight in the fair share; 2 gets twice the service of 1 under contention.",
    )
    ends_at = models.DateTimeField(
        null=True, blank=True, help_text="The account and its keys stop then; empty: never."
    )
    erased_at = models.DateTimeField(null=True, blank=True, editable=False)
    time_zone = models.CharField(max_length=64, blank=True)
    theme = models.CharField(max_length=8, blank=True)
    wants_quota_mail = models.BooleanField(
        default=True, help_text="Mail at 80 and 100 % of a daily or monthly limit."
    )
