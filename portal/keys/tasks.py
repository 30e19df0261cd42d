"""Celery's part in keys: only the bell."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from portal.keys import reminders


@shared_task
def remind() -> None:
    """Mail the owners of keys that expire soon."""
    reminders.send(timezone.now())
