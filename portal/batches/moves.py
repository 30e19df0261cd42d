"""The one place where a job changes its state."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Model
from django.utils import timezone

from portal.batches.models import BatchJob
from portal.batches.states import STAMPS, JobState, came_from


def move(job_pk: int, state: JobState, **also: Model | str | Sequence[object] | None) -> bool:
    """Move the job to `state` from any state the table allows; False: another was first."""
    changes: dict[str, object] = {"state": state, **also}
    if column := STAMPS.get(state):
        changes[column] = timezone.now()
    moved = BatchJob.objects.filter(pk=job_pk, state__in=came_from(state)).update(**changes)
    return moved == 1
