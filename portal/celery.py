"""Celery rings the bell; PostgreSQL holds the truth."""

from __future__ import annotations

import os
import warnings

from celery import Celery
from celery.exceptions import SecurityWarning
from celery.signals import worker_process_init

from portal.processes import die_with_parent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
app = Celery("fairway")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.autodiscover_tasks(["portal.keys"])  # a feature, not an app of its own

# Celery warns root about pickle; our messages are JSON, in a Redis that only we can write to.
warnings.filterwarnings("ignore", category=SecurityWarning)


@worker_process_init.connect
def follow_the_worker(**_: object) -> None:
    """Let no pool process outlive a worker that was killed."""
    die_with_parent()
