"""Slots kept for a group by calendar: a course, a demonstration."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from quotas.models.audit import audited
from quotas.models.engines import Pool
from quotas.models.people import Group


@audited()
class Reservation(models.Model):
    """While it runs, everybody outside the group shares the pool's other slots."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="reservations")
    pool = models.ForeignKey(
        Pool, on_delete=models.CASCADE, related_name="reservations", verbose_name="model"
    )
    slots = models.PositiveIntegerField(
        validators=[MinValueValidator(1)], help_text="Kept for the group, used or not."
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="It ends by itself then.")
    weeks = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(53)],
        help_text="How many weeks in a row, at the same time of day; 1: once.",
    )
    note = models.CharField(max_length=200, blank=True, help_text="Shown on the status page.")
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["starts_at"]
        constraints = [
            models.CheckConstraint(
                name="reservation_ends_after_it_starts",
                condition=Q(ends_at__gt=F("starts_at")),
                violation_error_message="It must end after it starts.",
            ),
            models.CheckConstraint(name="reservation_has_slots", condition=Q(slots__gte=1)),
            models.CheckConstraint(
                name="reservation_has_weeks", condition=Q(weeks__gte=1, weeks__lte=53)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.slots} of {self.pool} for {self.group}"
