"""Which mails about limits went out: each once in a window."""

from __future__ import annotations

from django.db import models

from quotas.models.people import User


class QuotaMail(models.Model):
    """A mail that somebody was sent, or would have been had there been a mail server."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    counter = models.CharField(max_length=200)  # quotas.snapshots.counters.field
    percent = models.PositiveSmallIntegerField()
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "counter", "percent"], name="quota_mail_once_in_a_window"
            )
        ]

    def __str__(self) -> str:
        return f"{self.percent} % of {self.counter}"
