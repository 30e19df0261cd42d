"""Few connections to the database serve many people who read and write slowly."""

from __future__ import annotations

from django.db import connection


def give_back() -> None:
    """Give this thread's connection back before something that may take minutes."""
    if not connection.in_atomic_block:
        connection.close()
