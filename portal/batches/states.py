"""The states of jobs and items, and the only moves between them.

Rule 1: a state changes by a conditional UPDATE from a state this table allows; no row changed
means somebody else was first, and nothing is done.
Rule 2: the end states are the rows with no way out.
Rule 3: what a client sees is one of OpenAI's eight words; our finer states map onto them.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.db import models


class JobState(models.TextChoices):
    """Where a job stands."""

    QUEUED = "queued", "waits"  # stored, no line sent yet
    IN_PROGRESS = "in_progress", "in progress"
    FINALIZING = "finalizing", "writing results"  # every line has ended
    CANCELLING = "cancelling", "cancelling"  # lines in flight may still end
    EXPIRING = "expiring", "out of time"  # the completion window has closed
    COMPLETED = "completed", "completed"
    EXPIRED = "expired", "expired"
    CANCELLED = "cancelled", "cancelled"
    FAILED = "failed", "failed"  # its input is gone or cannot be read


class ItemState(models.TextChoices):
    """Where one line stands."""

    QUEUED = "queued", "not sent yet"
    RUNNING = "running", "sent"  # leased by a runner: waits in the gateway or is in flight
    DONE = "done", "done"  # answered with 2xx
    FAILED = "failed", "failed"
    EXPIRED = "expired", "not run, out of time"
    CANCELLED = "cancelled", "not run, cancelled"


J, I = JobState, ItemState  # noqa: E741  (two tables read better with short names)

NEXT_JOB: Mapping[JobState, frozenset[JobState]] = {
    J.QUEUED: frozenset({J.IN_PROGRESS, J.CANCELLING, J.EXPIRING, J.FAILED}),
    J.IN_PROGRESS: frozenset({J.FINALIZING, J.CANCELLING, J.EXPIRING, J.FAILED}),
    J.FINALIZING: frozenset({J.COMPLETED}),
    J.CANCELLING: frozenset({J.CANCELLED}),
    J.EXPIRING: frozenset({J.EXPIRED}),
    J.COMPLETED: frozenset(),
    J.EXPIRED: frozenset(),
    J.CANCELLED: frozenset(),
    J.FAILED: frozenset(),
}
NEXT_ITEM: Mapping[ItemState, frozenset[ItemState]] = {
    I.QUEUED: frozenset({I.RUNNING, I.EXPIRED, I.CANCELLED}),
    I.RUNNING: frozenset({I.QUEUED, I.DONE, I.FAILED, I.EXPIRED, I.CANCELLED}),
    I.DONE: frozenset(),
    I.FAILED: frozenset(),
    I.EXPIRED: frozenset(),
    I.CANCELLED: frozenset(),
}

JOB_ENDS = frozenset(state for state, ways in NEXT_JOB.items() if not ways)
ITEM_ENDS = frozenset(state for state, ways in NEXT_ITEM.items() if not ways)
LIVE = tuple(state for state in JobState if state not in JOB_ENDS)
SENDING = (J.QUEUED, J.IN_PROGRESS)  # lines may be sent
WRITING = (J.FINALIZING, J.CANCELLING, J.EXPIRING)  # result files come next

#: When a job enters a state, this column gets the time.
STAMPS: Mapping[JobState, str] = {
    J.IN_PROGRESS: "in_progress_at",
    J.FINALIZING: "finalizing_at",
    J.COMPLETED: "completed_at",
    J.FAILED: "failed_at",
    J.EXPIRING: "finalizing_at",
    J.EXPIRED: "expired_at",
    J.CANCELLING: "cancelling_at",
    J.CANCELLED: "cancelled_at",
}

PUBLIC: Mapping[JobState, str] = {
    J.QUEUED: "validating",
    J.IN_PROGRESS: "in_progress",
    J.FINALIZING: "finalizing",
    J.CANCELLING: "cancelling",
    J.EXPIRING: "finalizing",
    J.COMPLETED: "completed",
    J.EXPIRED: "expired",
    J.CANCELLED: "cancelled",
    J.FAILED: "failed",
}


def came_from(state: JobState) -> tuple[JobState, ...]:
    """Return the states from which `state` may be entered."""
    return tuple(source for source, ways in NEXT_JOB.items() if state in ways)
