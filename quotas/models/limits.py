"""Rows of limits: one number at one level for one class of service."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from quotas.models.audit import audited
from quotas.models.keys import ApiKey, ServiceClass
from quotas.models.people import Group, User


class Level(models.TextChoices):
    """Where a limit is set, from the widest to the narrowest."""

    EVERYONE = "everyone", "Everyone"
    GROUP = "group", "Group"
    USER = "user", "User"
    KEY = "key", "Key"


class Per(models.TextChoices):
    """What a limit counts over, whatever level it was set at."""

    KEY = "key", "each key"
    PERSON = "person", "each person, over all their keys"
    GROUP = "group", "the whole group"


def _target(level: str, column: str | None) -> Q:
    columns = ("group", "user", "key")
    wanted = {f"{name}__isnull": name != column for name in columns}
    return Q(level=level, **wanted)


@audited()
class LimitRow(models.Model):
    """A limit somebody set. The narrowest row in force wins for each (class, name, per).

    A row with an end counts instead of its level's lasting row until it ends; then the lasting
    row is in force again by itself.
    """

    level = models.CharField(max_length=8, choices=Level.choices)
    group = models.ForeignKey(
        Group, null=True, blank=True, on_delete=models.CASCADE, related_name="limits"
    )
    user = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.CASCADE, related_name="limits"
    )
    key = models.ForeignKey(
        ApiKey, null=True, blank=True, on_delete=models.CASCADE, related_name="limits"
    )
    service_class = models.CharField(max_length=12, choices=ServiceClass.choices)
    name = models.CharField(max_length=32, verbose_name="limit")
    per = models.CharField(max_length=8, choices=Per.choices)
    value = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Empty: no limit at this level."
    )
    names = ArrayField(
        models.CharField(max_length=200),
        null=True,
        blank=True,
        help_text="For limits that are a list: the models allowed.",
    )
    ends_at = models.DateTimeField(
        null=True, blank=True, help_text="Empty: lasting. Otherwise the row ends by itself."
    )
    note = models.CharField(max_length=200, blank=True)
    edition = models.PositiveIntegerField(default=1, editable=False)
    set_at = models.DateTimeField(auto_now=True)

    SAME: ClassVar[list[str]] = ["group", "user", "key", "service_class", "name", "per"]

    class Meta:
        verbose_name = "limit"
        ordering = ["name", "service_class", "level"]
        constraints = [
            models.CheckConstraint(
                name="limit_target_matches_level",
                condition=_target("everyone", None)
                | _target("group", "group")
                | _target("user", "user")
                | _target("key", "key"),
                violation_error_message="Name exactly the group, user or key the level speaks of.",
            ),
            models.CheckConstraint(
                name="limit_of_a_key_counts_per_key",
                condition=~Q(level="key") | Q(per="key"),
                violation_error_message="A limit set on a key counts for that key alone.",
            ),
            models.CheckConstraint(
                name="limit_of_a_user_is_not_per_group",
                condition=~Q(level="user", per="group"),
                violation_error_message="A user cannot be given a limit of the whole group.",
            ),
            models.UniqueConstraint(
                name="limit_one_lasting_row_per_target",
                fields=["group", "user", "key", "service_class", "name", "per"],
                condition=Q(ends_at__isnull=True),
                nulls_distinct=False,
                violation_error_message="This limit is already set; change that row.",
            ),
            models.UniqueConstraint(
                name="limit_one_ending_row_per_target",
                fields=["group", "user", "key", "service_class", "name", "per"],
                condition=Q(ends_at__isnull=False),
                nulls_distinct=False,
                violation_error_message="There is already a time-limited row; change that one.",
            ),
        ]

    def __str__(self) -> str:
        shown = self.value if self.names is None else ", ".join(self.names)
        return f"{self.name} {shown} per {self.per} ({self.service_class}, {self.level})"
