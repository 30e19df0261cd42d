"""The one way to change the books: lock, write, let the gateways know.

`writing()` takes the books' write lock first, so services never deadlock with each other and
every change has its own version; it publishes after the commit. Should this process die between
the two, the usage writer's loop notices within a second that Redis is behind (`ensure_published`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from quotas import directory
from quotas.models import DirectoryVersion
from quotas.picture import Scope

_BUMP = (
    f"INSERT INTO {DirectoryVersion._meta.db_table} AS kept (id, version) VALUES (1, 1) "  # noqa: S608
    "ON CONFLICT (id) DO UPDATE SET version = kept.version + 1 RETURNING version"
)


@contextmanager
def writing(scope: Scope | None = None) -> Iterator[set[str]]:
    """Hold the write lock for the block; publish what `scope` names (None: all) on commit.

    The block is given a set for the digests of secrets that open nothing any more: they are taken
    out of the directory, without publishing everybody's keys for it.
    """
    gone: set[str] = set()
    with transaction.atomic():
        with connection.cursor() as cursor:
            # A revocation that was shown as done must survive a crash of the server.
            cursor.execute("SET LOCAL synchronous_commit = on")
            cursor.execute(_BUMP)
        yield gone
        # No partial: Django names what fails, and a partial has no name.
        transaction.on_commit(lambda: directory.publish_soon(scope, gone), robust=True)
