"""Measured capacity: runs with their raw samples, what real traffic looked like, decisions.

A run is the record of one measurement. Only a complete run may be published; what is withdrawn
stays visible with its date and reason. Raw samples are kept, so that every figure can be checked.
"""

from __future__ import annotations

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import Q

from quotas.models.engines import Replica
from quotas.models.identity import make


def new_run_id() -> str:
    """Name a run."""
    return make("run_")


class CapacityRun(models.Model):
    """One measurement of one replica."""

    class State(models.TextChoices):
        PLANNED = "planned", "Planned"
        RUNNING = "running", "Running"
        COMPLETE = "complete", "Complete"
        PARTIAL = "partial", "Partial: stopped before its end"
        VOID = "void", "Void: a condition could not be proven"
        FAILED = "failed", "Failed"

    LIVE = (State.PLANNED, State.RUNNING)

    public_id = models.CharField(max_length=24, unique=True, default=new_run_id, editable=False)
    replica = models.ForeignKey(
        Replica, null=True, on_delete=models.SET_NULL, related_name="capacity_runs"
    )
    # Names of the day: the run outlives the replica.
    replica_name = models.CharField(max_length=100)
    pool_name = models.CharField(max_length=200)
    state = models.CharField(max_length=10, choices=State.choices, default=State.PLANNED)
    reason = models.TextField(blank=True, help_text="Why it is void, partial or failed.")
    plan = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    fingerprint = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    fingerprint_digest = models.CharField(max_length=16, blank=True)
    report = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    sentence = models.TextField(blank=True)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    asked_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    expected_end_at = models.DateTimeField(null=True, blank=True)
    heard_at = models.DateTimeField(null=True, blank=True, help_text="Last sign of life.")
    ended_at = models.DateTimeField(null=True, blank=True)
    steps_done = models.PositiveIntegerField(default=0)
    steps_total = models.PositiveIntegerField(default=0)
    stop_requested = models.BooleanField(default=False)
    published_at = models.DateTimeField(null=True, blank=True)
    published_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    withdrawn_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    withdrawn_reason = models.TextField(blank=True)

    class Meta:
        verbose_name = "capacity run"
        ordering = ["-asked_at"]
        constraints = [
            models.UniqueConstraint(
                name="capacityrun_one_live_per_replica",
                fields=["replica"],
                condition=Q(state__in=["planned", "running"]),
            ),
            models.CheckConstraint(
                name="capacityrun_published_is_complete",
                condition=Q(published_at__isnull=True) | Q(state="complete"),
            ),
            models.CheckConstraint(
                name="capacityrun_withdrawn_was_published",
                condition=Q(withdrawn_at__isnull=True)
                | (Q(published_at__isnull=False) & ~Q(withdrawn_reason="")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.replica_name}, {self.asked_at:%Y-%m-%d %H:%M}"

    @property
    def is_live(self) -> bool:
        """Tell whether it waits to run or runs."""
        return self.state in self.LIVE

    @property
    def is_published(self) -> bool:
        """Tell whether people are shown its figures as current."""
        return self.published_at is not None and self.withdrawn_at is None


class CapacitySample(models.Model):
    """One step of a run as it went, never changed."""

    run = models.ForeignKey(CapacityRun, on_delete=models.CASCADE, related_name="samples")
    step = models.PositiveIntegerField()
    kind = models.CharField(max_length=8)  # first, cold, warm
    prompt_tokens = models.PositiveIntegerField(help_text="As planned.")
    concurrency = models.PositiveIntegerField()
    repeat = models.PositiveIntegerField()
    answers = models.JSONField(encoder=DjangoJSONEncoder, help_text="Each request, raw.")

    class Meta:
        ordering = ["run", "step"]
        constraints = [
            models.UniqueConstraint(name="capacitysample_once", fields=["run", "step"]),
        ]

    def __str__(self) -> str:
        return f"step {self.step}"


class PoolMinute(models.Model):
    """What one pool was like in one minute; empty is unknown, never 0."""

    pool = models.CharField(max_length=200)
    minute = models.DateTimeField()
    looks = models.PositiveIntegerField(help_text="How many looks the averages are of.")
    slots = models.FloatField(null=True)
    held_interactive = models.FloatField(null=True)
    held_batch = models.FloatField(null=True)
    waiting_interactive = models.FloatField(null=True)
    waiting_batch = models.FloatField(null=True)
    expected_wait_interactive_s = models.FloatField(null=True)
    expected_wait_batch_s = models.FloatField(null=True)
    kv_usage = models.FloatField(null=True)
    tokens_in_per_s = models.FloatField(null=True)
    tokens_out_per_s = models.FloatField(null=True)
    preemptions = models.PositiveIntegerField(null=True)
    verdict = models.CharField(max_length=12, default="unknown")
    # Seconds that interactive requests waited in this minute, by blocker.
    waited_s = models.JSONField(default=dict)

    class Meta:
        ordering = ["pool", "minute"]
        constraints = [models.UniqueConstraint(name="poolminute_once", fields=["pool", "minute"])]

    def __str__(self) -> str:
        return f"{self.pool}, {self.minute:%Y-%m-%d %H:%M}"


class CapacityDecision(models.Model):
    """A dated record for administrators: what waiting was for, and what would end it."""

    pool = models.CharField(max_length=200)
    date = models.DateField()
    blocker = models.CharField(max_length=12)
    action = models.TextField()
    reason = models.TextField()
    arithmetic = models.TextField(blank=True)
    replicas_needed = models.PositiveIntegerField(null=True)
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-date", "pool"]
        constraints = [
            models.UniqueConstraint(name="capacitydecision_one_a_day", fields=["pool", "date"])
        ]

    def __str__(self) -> str:
        return f"{self.pool}, {self.date}"
