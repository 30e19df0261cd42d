"""Who still has a password that somebody else has seen."""

from __future__ import annotations

from django.db import models

from quotas.models import User


class OneTimePassword(models.Model):
    """Stands as long as a person has not replaced the password they were given."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, related_name="one_time_password")
    made_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.user)
