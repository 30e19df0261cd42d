"""People and the group whose limits they share."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models


class Group(models.Model):
    """A research group, course or project; a user belongs to at most one."""

    name = models.CharField(max_length=100, unique=True)
    is_active = models.BooleanField(default=True)
    owners = models.ManyToManyField("quotas.User", related_name="owned_groups", blank=True)

    def __str__(self) -> str:
        return self.name


class User(AbstractUser):
    """A person with an account."""

    group = models.ForeignKey(
        Group, null=True, blank=True, on_delete=models.SET_NULL, related_name="members"
    )
    time_zone = models.CharField(max_length=64, blank=True)
    theme = models.CharField(max_length=8, blank=True)
