"""The audit trail: who changed what, when, from what to what.

Triggers in the database write it, so bulk updates and edits from a shell or psql are in it as
well. Secrets never are: columns such as digests and password hashes are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pghistory
from django.db import models

M = TypeVar("M", bound=type[models.Model])


def audited(*without: str) -> Callable[[M], M]:
    """Keep every version of the model's rows, without the named columns."""
    track: Callable[..., Any] = pghistory.track
    decorator: Callable[[M], M] = track(
        pghistory.InsertEvent(),
        pghistory.UpdateEvent(),
        pghistory.DeleteEvent(),
        exclude=list(without),
    )
    return decorator
