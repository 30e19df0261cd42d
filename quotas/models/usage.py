"""What was used: one row for each served, failed, aborted, interrupted or evicted request.

`usage_event` is partitioned by month of `arrived_at`; retention drops whole partitions. Rows name
people, keys and engines by value, not by foreign key: the books of a month stay true after
somebody has left. `usage_hour` is kept in the transaction that writes the rows, by the difference
they really made, so the two always agree. No prompt text, ever.
"""

from __future__ import annotations

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Q


class UsageEvent(models.Model):
    """One request. Written by the usage writer alone.

    In the database the primary key is (arrived_at, request_id), because the partition key must
    be part of it; request ids are ours and unique for ever, so Django may know the second alone.
    What comes last belongs at the end of that index, which therefore costs little to keep, and
    request ids begin with their time, so a BRIN, whose size is nothing, finds one.
    """

    request_id = models.CharField(max_length=64, primary_key=True)
    arrived_at = models.DateTimeField()
    key_id = models.CharField(max_length=24)
    user_id = models.BigIntegerField()
    group_id = models.BigIntegerField(null=True)
    service_class = models.CharField(max_length=12)
    route = models.CharField(max_length=64)
    model = models.CharField(max_length=200)
    replica_id = models.CharField(max_length=24)
    outcome = models.CharField(max_length=32)
    status = models.PositiveSmallIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField(null=True)
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField(null=True)
    estimated = models.BooleanField()
    queue_wait_ms = models.BigIntegerField(null=True)
    ttft_ms = models.BigIntegerField(null=True)
    duration_ms = models.BigIntegerField()
    finish_reason = models.CharField(max_length=32)
    error_code = models.CharField(max_length=64)
    stream = models.BooleanField()
    end_user = models.CharField(max_length=200)
    batch_id = models.CharField(max_length=64)
    client_request_id = models.CharField(max_length=200)

    class Meta:
        db_table = "usage_event"
        verbose_name = "request"
        ordering = ["-arrived_at"]
        indexes = [
            models.Index(fields=["user_id", "arrived_at"], name="usage_event_user_time"),
            models.Index(fields=["key_id", "arrived_at"], name="usage_event_key_time"),
            BrinIndex(
                fields=["request_id"],
                name="usage_event_request",
                autosummarize=True,
                pages_per_range=32,
            ),
            models.Index(
                fields=["batch_id", "arrived_at"],
                name="usage_event_batch",
                condition=~Q(batch_id=""),
            ),
        ]

    def __str__(self) -> str:
        return self.request_id


class UsageHour(models.Model):
    """Sums of one hour for one key, model and class (and batch, and end user)."""

    hour = models.DateTimeField()  # start of the hour in the reporting zone
    user_id = models.BigIntegerField()
    group_id = models.BigIntegerField(null=True)
    key_id = models.CharField(max_length=24)
    model = models.CharField(max_length=200)
    service_class = models.CharField(max_length=12)
    batch_id = models.CharField(max_length=64)
    end_user = models.CharField(max_length=200)
    requests = models.BigIntegerField()
    served = models.BigIntegerField()
    failed = models.BigIntegerField()  # failed or interrupted
    aborted = models.BigIntegerField()
    evicted = models.BigIntegerField()
    estimated = models.BigIntegerField()  # requests whose tokens we counted ourselves
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    queue_wait_ms = models.BigIntegerField()
    ttft_ms = models.BigIntegerField()
    ttft_count = models.BigIntegerField()
    duration_ms = models.BigIntegerField()

    class Meta:
        db_table = "usage_hour"
        verbose_name = "hour of usage"
        verbose_name_plural = "hours of usage"
        constraints = [
            models.UniqueConstraint(
                name="usage_hour_once",
                fields=[
                    "user_id",
                    "hour",
                    "key_id",
                    "model",
                    "service_class",
                    "batch_id",
                    "end_user",
                    "group_id",
                ],
                nulls_distinct=False,
            ),
        ]
        indexes = [
            models.Index(fields=["hour"], name="usage_hour_time"),
            models.Index(fields=["key_id", "hour"], name="usage_hour_key_time"),
            models.Index(fields=["group_id", "hour"], name="usage_hour_group_time"),
        ]

    def __str__(self) -> str:
        return f"{self.key_id} {self.hour:%Y-%m-%d %H:%M}"


class RejectedMinute(models.Model):
    """How often a key was turned away at the door, by code and minute; no row per request."""

    minute = models.DateTimeField()
    key_id = models.CharField(max_length=24)
    code = models.CharField(max_length=64)
    count = models.BigIntegerField()

    class Meta:
        db_table = "usage_rejected_minute"
        verbose_name = "minute of rejections"
        constraints = [
            models.UniqueConstraint(
                name="usage_rejected_once", fields=["key_id", "minute", "code"]
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key_id} {self.code} {self.count}"


class WriterPosition(models.Model):
    """How far the usage stream is written; one row, moved with the rows it speaks of."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    epoch = models.CharField(max_length=64)
    run_id = models.CharField(max_length=64)
    stream_id = models.CharField(max_length=48)
    moved_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "usage_writer_position"
        constraints = [
            models.CheckConstraint(name="usage_writer_one_row", condition=Q(id=1)),
        ]

    def __str__(self) -> str:
        return f"{self.epoch}/{self.stream_id}"


class DirectoryVersion(models.Model):
    """Grows by one with every change of the books; its row is the books' write lock."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    version = models.BigIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(name="directory_version_one_row", condition=Q(id=1)),
        ]

    def __str__(self) -> str:
        return str(self.version)
