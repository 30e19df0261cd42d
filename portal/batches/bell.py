"""Rings for a runner. A lost ring costs at most one round of the sweeper."""

from __future__ import annotations

import structlog
from kombu.exceptions import OperationalError

log = structlog.get_logger(__name__)


def ring() -> None:
    """Ask some worker to look for lines; never fails, because the rows are what counts."""
    from portal.batches.tasks import run_lines  # tasks import the runner, the runner services

    try:
        run_lines.apply_async(ignore_result=True, retry=False, expires=600)
    except (OperationalError, OSError) as error:
        log.warning("bell_unheard", error=str(error)[:200])
