"""One PostgreSQL and one Valkey for a whole test run, started by the first test that needs them.

Each run has its own folder, so runs at the same time never meet. The first run with a new set of
migrations leaves its migrated, empty cluster in `tests/.cache`; later runs copy it instead of
migrating for ten seconds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from importlib.metadata import distributions
from pathlib import Path

import redis

from portal import stores
from portal.stores.embedded import Store, start_postgres, start_valkey

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "tests" / ".cache"
PREFIX = "fairway-test-"
KEPT_CLUSTERS = 3


def fingerprint() -> str:
    """Return a text that changes with every migration, ours or a library's."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.glob("*/migrations/*.py")):
        digest.update(path.read_bytes())
    for name in sorted(f"{d.name}={d.version}" for d in distributions()):
        digest.update(name.encode())
    return digest.hexdigest()[:16]


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
            ready = self._cached()
            if ready.exists():
                shutil.copytree(ready, self._folder / "pg")
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

    def remember(self) -> None:
        """Keep the migrated cluster for later runs; nobody may be connected to it."""
        server = self._running.get("DATABASE_URL")
        if server is None:
            return
        server.stop()
        CACHE.mkdir(exist_ok=True)
        unfinished = CACHE / f"unfinished-{os.getpid()}"
        shutil.copytree(self._folder / "pg", unfinished)
        self._running["DATABASE_URL"] = start_postgres(self._folder, durable=False)
        try:
            unfinished.rename(self._cached())
        except OSError:  # another run was first
            shutil.rmtree(unfinished)
        clusters = sorted(CACHE.glob("migrated-*"), key=lambda path: path.stat().st_mtime)
        for old in clusters[:-KEPT_CLUSTERS]:
            shutil.rmtree(old, ignore_errors=True)

    def stop(self) -> None:
        """Stop what was started and leave no folder behind."""
        for store in self._running.values():
            if store is not None:
                store.stop()
        self._running.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(stores.run_dir(self._folder), ignore_errors=True)

    def _cached(self) -> Path:
        return CACHE / f"migrated-{fingerprint()}"
