"""One PostgreSQL and one Valkey for a whole test run, started by the first test that needs them.

Each run has its own folder, so runs at the same time never meet.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

import redis

from portal import stores
from portal.stores.embedded import Store, start_postgres, start_valkey
from tests.rig.seeding import seed

PREFIX = "fairway-test-"


def sweep(folder: Path) -> None:
    """Remove the folders of runs that were killed; a living run's folder carries its pid."""
    for left in folder.glob(f"{PREFIX}*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


class SessionStores:
    """The stores of one pytest session."""

    def __init__(self) -> None:
        self.has_migrated_database = False
        self._folder = Path()
        self._addresses: dict[str, str] = {}
        self._running: dict[str, Store | None] = {}

    def announce(self, environ: MutableMapping[str, str]) -> None:
        """Put the addresses of this run into `environ`; nothing is started yet."""
        sweep(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        environ.setdefault("DATA_DIR", str(self._folder))
        environ.setdefault("SECRET_KEY", "for tests only, but of fifty characters and a few more")
        for name, ours in (
            ("DATABASE_URL", stores.postgres_url(self._folder)),
            ("REDIS_URL", stores.valkey_url(self._folder)),
        ):
            if environ.get(name):
                self._running[name] = None  # somebody else runs it: never start or stop it
            self._addresses[name] = environ.setdefault(name, ours)

    def database(self) -> str:
        """Return the address of PostgreSQL, started if need be."""
        if "DATABASE_URL" not in self._running:
            seed(self._folder)
            self.has_migrated_database = True
            self._running["DATABASE_URL"] = start_postgres(self._folder, durable=False)
        return self._addresses["DATABASE_URL"]

    def redis(self) -> str:
        """Return the address of Valkey, started if need be."""
        if "REDIS_URL" not in self._running:
            self._running["REDIS_URL"] = start_valkey(self._folder, durable=False)
        return self._addresses["REDIS_URL"]

    def flush(self) -> None:
        """Empty the Redis database the tests use."""
        with redis.Redis.from_url(self.redis()) as link:
            link.flushdb()

    def stop(self) -> None:
        """Stop what was started and leave no folder behind."""
        for store in self._running.values():
            if store is not None:
                store.stop()
        self._running.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(stores.run_dir(self._folder), ignore_errors=True)
