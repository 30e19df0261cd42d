"""Gives a new installation a database that is migrated already, when an earlier run left one."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg

from portal import stores
from portal.stores.embedded import start_postgres
from tests.rig.stores import CACHE, fingerprint

OURS, TESTS = "fairway", "test_fairway"  # the product's database, and pytest-django's


def seed(data_dir: Path) -> bool:
    """Put a migrated, empty cluster into `data_dir`; False when there is none yet."""
    ready = CACHE / f"migrated-{fingerprint()}"
    if not ready.exists():
        return False
    stores.private_folder(data_dir)
    shutil.copytree(ready, data_dir / "pg")
    server = start_postgres(data_dir, durable=False)
    try:
        with psycopg.connect(server.url, dbname="postgres", autocommit=True) as link:
            link.execute(f"DROP DATABASE {OURS}")
            link.execute(f"ALTER DATABASE {TESTS} RENAME TO {OURS}")
    finally:
        server.stop()
    return True
