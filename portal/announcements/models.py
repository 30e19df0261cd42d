"""What people are told on every page: planned maintenance, news, what happened."""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from quotas.models import ApiKey


class Announcement(models.Model):
    """One message with the time in which it is shown."""

    class Kind(models.TextChoices):
        PLANNED = "planned", "Planned maintenance"
        NEWS = "news", "News"
        INCIDENT = "incident", "Something that happened"

    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.NEWS)
    text = models.CharField(max_length=500, help_text="What happens, when, and for whom.")
    shown_from = models.DateTimeField(default=timezone.now)
    shown_until = models.DateTimeField(help_text="It disappears by itself.")
    starts_at = models.DateTimeField(
        null=True, blank=True, help_text="Of the maintenance or incident itself."
    )
    ends_at = models.DateTimeField(null=True, blank=True)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL,
        related_name="+",
    )  # fmt: skip

    class Meta:
        ordering = ["-shown_from"]
        constraints = [
            models.CheckConstraint(
                name="announcement_ends_after_it_begins",
                condition=Q(shown_until__gt=F("shown_from")),
                violation_error_message="It must be shown for some time.",
            ),
            models.CheckConstraint(
                name="announced_event_ends_after_it_begins",
                condition=Q(ends_at__isnull=True)
                | Q(starts_at__isnull=True)
                | Q(ends_at__gte=F("starts_at")),
                violation_error_message="The end comes after the start.",
            ),
        ]

    def __str__(self) -> str:
        return self.text[:60]


class KeyReminder(models.Model):
    """A mail about a key that expires soon; a row is made before the mail, so none goes twice."""

    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="reminders")
    expires_at = models.DateTimeField()
    days = models.PositiveSmallIntegerField()
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="key_reminder_once", fields=["key", "expires_at", "days"]),
        ]

    def __str__(self) -> str:
        return f"{self.key}: {self.days} days before"


def shown(now: dt.datetime) -> list[Announcement]:
    """Return what every page shows now."""
    return list(Announcement.objects.filter(shown_from__lte=now, shown_until__gt=now)[:5])


def planned_and_past(now: dt.datetime) -> list[Announcement]:
    """Return events for the status page: those to come and those of the last 30 days."""
    return list(
        Announcement.objects.filter(
            starts_at__gt=now - dt.timedelta(days=30), shown_from__lte=now
        ).order_by("-starts_at")[:12]
    )
