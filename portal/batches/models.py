"""Jobs, their items, the items' results, and the lanes runners take.

The rows are the truth: a Celery message, a runner's memory and a file on disk may each be lost
or doubled at any moment without a line being lost or counted twice.
"""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from portal.batches.states import JOB_ENDS, LIVE, ItemState, JobState
from portal.files.models import StoredFile
from quotas.models import ApiKey, User


def new_batch_id() -> str:
    """Name a job; 128 random bits."""
    return f"batch_{secrets.token_hex(16)}"


class BatchJob(models.Model):
    """One submitted file."""

    State = JobState
    LIVE = LIVE

    public_id = models.CharField(max_length=40, unique=True, default=new_batch_id, editable=False)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="batches")
    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="batches")
    name = models.CharField(max_length=255)
    endpoint = models.CharField(max_length=64)
    model = models.CharField(max_length=200)
    input_file = models.ForeignKey(
        StoredFile, null=True, on_delete=models.SET_NULL, related_name="batches"
    )
    input_file_ref = models.CharField(max_length=40)  # stays when the file is deleted
    completion_window = models.CharField(max_length=8)
    output_expires_s = models.PositiveIntegerField(null=True, blank=True)
    metadata = models.JSONField(null=True, blank=True)
    state = models.CharField(max_length=12, choices=JobState.choices, default=JobState.QUEUED)

    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    last_line_at = models.DateTimeField(null=True, blank=True, help_text="When a line last ended.")

    # Moved in the transaction that ends the lines they count.
    total = models.PositiveIntegerField()
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    input_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    prompt_tokens_estimated = models.PositiveBigIntegerField(default=0)

    output_file = models.ForeignKey(
        StoredFile, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    error_file = models.ForeignKey(
        StoredFile, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    # Kept when the files are deleted, so that the Batch object still names them.
    output_file_ref = models.CharField(max_length=40, blank=True)
    error_file_ref = models.CharField(max_length=40, blank=True)
    errors = models.JSONField(default=list, blank=True)  # of a failed job, as OpenAI lists them

    wait_code = models.CharField(max_length=64, blank=True, help_text="Why no line is sent now.")
    wait_message = models.CharField(max_length=500, blank=True)
    wait_until = models.DateTimeField(null=True, blank=True)

    request_digest = models.CharField(max_length=64, blank=True)
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001
    retry_of = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="retries"
    )
    stalled_notice_at = models.DateTimeField(null=True, blank=True)
    ended_notice_at = models.DateTimeField(null=True, blank=True)
    webhook_url = models.CharField(
        max_length=500, blank=True, default="", db_default="", help_text="Told of the end."
    )
    webhook_tries = models.PositiveSmallIntegerField(default=0, db_default=0)
    webhook_due_at = models.DateTimeField(null=True, blank=True, help_text="Of the next try.")
    webhook_ended_at = models.DateTimeField(null=True, blank=True, help_text="Taken or given up.")
    webhook_problem = models.CharField(max_length=200, blank=True, default="", db_default="")
    writer = models.CharField(max_length=64, blank=True)  # who assembles the result files
    writer_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "batch_job"
        verbose_name = "batch"
        verbose_name_plural = "batches"
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["owner", "-id"], name="job_owner_newest"),
            models.Index(
                fields=["owner", "id"], name="job_live", condition=Q(state__in=list(LIVE))
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="job_state_is_known", condition=Q(state__in=JobState.values)
            ),
            models.CheckConstraint(
                name="job_counts_fit", condition=Q(total__gte=F("completed") + F("failed"))
            ),
            models.CheckConstraint(
                name="job_completed_means_every_line_ended",
                condition=~Q(state="completed") | Q(total=F("completed") + F("failed")),
            ),
            models.CheckConstraint(
                name="job_end_has_its_time",
                condition=Q(state__in=[s for s in JobState.values if s not in JOB_ENDS])
                | Q(state="completed", completed_at__isnull=False)
                | Q(state="expired", expired_at__isnull=False)
                | Q(state="cancelled", cancelled_at__isnull=False)
                | Q(state="failed", failed_at__isnull=False),
            ),
            models.UniqueConstraint(
                name="job_one_per_idempotency_key",
                fields=["owner", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"


class BatchItem(models.Model):
    """One line of a job. `attempt` fences: an answer counts only for the attempt it belongs to."""

    State = ItemState

    job = models.ForeignKey(BatchJob, on_delete=models.CASCADE, related_name="items")
    line_no = models.PositiveIntegerField()
    run_order = models.PositiveIntegerField(help_text="Lines that begin alike run together.")
    custom_id = models.CharField(max_length=256)
    offset = models.PositiveBigIntegerField()
    length = models.PositiveIntegerField()
    state = models.CharField(max_length=12, choices=ItemState.choices, default=ItemState.QUEUED)
    attempt = models.PositiveIntegerField(default=0, help_text="Times it was taken.")
    failures = models.PositiveSmallIntegerField(
        default=0, help_text="Attempts that broke: the engine failed or the runner died."
    )
    lease_owner = models.CharField(max_length=64, blank=True)
    lease_end = models.DateTimeField(null=True, blank=True)
    not_before = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    status_code = models.PositiveSmallIntegerField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True, help_text="Why it failed, for people.")

    class Meta:
        db_table = "batch_item"
        verbose_name = "line"
        ordering = ["line_no"]
        indexes = [
            models.Index(
                fields=["job", "run_order"], name="item_queued", condition=Q(state="queued")
            ),
            models.Index(fields=["lease_end"], name="item_leases", condition=Q(state="running")),
            models.Index(
                fields=["job", "line_no"], name="item_failed", condition=Q(state="failed")
            ),
        ]
        constraints = [
            models.UniqueConstraint(name="item_one_per_line", fields=["job", "line_no"]),
            models.UniqueConstraint(name="item_one_per_custom_id", fields=["job", "custom_id"]),
            models.CheckConstraint(
                name="item_running_has_a_lease",
                condition=Q(state="running", lease_end__isnull=False)
                | (~Q(state="running") & Q(lease_end__isnull=True)),
            ),
            models.CheckConstraint(
                name="item_end_has_its_time",
                condition=Q(state__in=["queued", "running"], finished_at__isnull=True)
                | Q(
                    state__in=["done", "failed", "expired", "cancelled"],
                    finished_at__isnull=False,
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id}:{self.line_no}"


class BatchResult(models.Model):
    """The finished line of the output or error file, kept until that file is written."""

    item = models.OneToOneField(
        BatchItem, primary_key=True, on_delete=models.CASCADE, related_name="result"
    )
    line = models.BinaryField()

    class Meta:
        db_table = "batch_result"

    def __str__(self) -> str:
        return str(self.item_id)


class Lane(models.Model):
    """One person's jobs, taken as a whole by one runner at a time.

    Thereby exactly one process decides how many of a person's lines wait at the gateway.
    """

    owner = models.OneToOneField(
        User, primary_key=True, on_delete=models.CASCADE, related_name="lane"
    )
    lease_owner = models.CharField(max_length=64, blank=True)
    lease_end = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "batch_lane"

    def __str__(self) -> str:
        return f"lane of {self.owner_id}"
