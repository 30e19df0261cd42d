"""A stored file and, for batch input, where each of its lines lies."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from quotas.models import ApiKey, User


def new_file_id() -> str:
    """Name a file; 96 random bits."""
    return f"file-{secrets.token_hex(12)}"


class StoredFile(models.Model):
    """One whole file. Its row is written last, so what has a row is complete on disk."""

    class Purpose(models.TextChoices):
        BATCH = "batch", "batch input"
        BATCH_OUTPUT = "batch_output", "batch results"

    public_id = models.CharField(max_length=40, unique=True, default=new_file_id, editable=False)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="files")
    key = models.ForeignKey(
        ApiKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=16, choices=Purpose.choices)
    size = models.PositiveBigIntegerField(help_text="Bytes.")
    sha256 = models.CharField(max_length=64)
    name = models.CharField(max_length=200, unique=True, help_text="Name in the storage.")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: kept.")
    lines = models.PositiveIntegerField(default=0)
    endpoint = models.CharField(max_length=64, blank=True)
    model = models.CharField(max_length=200, blank=True)
    prompt_tokens = models.PositiveBigIntegerField(
        default=0, help_text="Estimated over all lines from their length."
    )
    problems = models.JSONField(
        default=list, blank=True, help_text="Lines left out, with the reason; portal uploads only."
    )

    class Meta:
        db_table = "stored_file"
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["owner", "-id"], name="file_owner_newest"),
            models.Index(
                fields=["expires_at"],
                name="file_expiry",
                condition=Q(expires_at__isnull=False),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="file_purpose_is_known", condition=Q(purpose__in=["batch", "batch_output"])
            ),
        ]

    def __str__(self) -> str:
        return f"{self.filename} ({self.public_id})"


class FileLine(models.Model):
    """Where one line of a batch input lies, and what the scheduler wants to know of it."""

    file = models.ForeignKey(StoredFile, on_delete=models.CASCADE, related_name="line_rows")
    line_no = models.PositiveIntegerField()
    offset = models.PositiveBigIntegerField()
    length = models.PositiveIntegerField()
    custom_id = models.CharField(max_length=256)
    prompt_tokens = models.PositiveIntegerField()
    output_tokens = models.PositiveIntegerField(null=True, help_text="Its own max_tokens, if any.")
    prefix = models.BigIntegerField(help_text="Hash of how its prompt begins.")

    class Meta:
        db_table = "file_line"
        constraints = [
            models.UniqueConstraint(name="fileline_once", fields=["file", "line_no"]),
        ]

    def __str__(self) -> str:
        return f"{self.file_id}:{self.line_no}"
