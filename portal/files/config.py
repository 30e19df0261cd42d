"""The published bounds of files, from settings."""

from __future__ import annotations

from django.conf import settings

from portal.files.lines import Limits

DAY_S = 86_400
EXPIRY_LEAST_S = 3_600
EXPIRY_MOST_S = 30 * DAY_S


def limits() -> Limits:
    """Return the bounds of a batch input."""
    return Limits(
        lines=settings.BATCH_MAX_LINES,
        size=settings.BATCH_MAX_BYTES,
        line_size=settings.BATCH_MAX_LINE_BYTES,
    )


def retention_s() -> int:
    """Return how long a file is kept when its owner does not say."""
    days: int = settings.FILE_RETENTION_DAYS
    return days * DAY_S
