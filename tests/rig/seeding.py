"""A PostgreSQL cluster that is migrated already: made once for each set of migrations.

It holds two migrated, empty databases: the product's, and the one pytest-django works in. Test
runs and products under test start from a copy of it instead of migrating for ten seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

import psycopg

from portal import stores
from portal.stores.embedded import Store, start_postgres

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "tests" / ".cache"
OURS, TESTS = "fairway", "test_fairway"  # the product's database, and pytest-django's
KEPT = 3


def fingerprint() -> str:
    """Return a text that changes with every migration, ours or a library's."""
    digest = hashlib.sha256()
    for path in sorted((*ROOT.glob("*/migrations/*.py"), *ROOT.glob("*/*/migrations/*.py"))):
        digest.update(path.read_bytes())
    for name in sorted(f"{d.name}={d.version}" for d in distributions()):
        digest.update(name.encode())
    return digest.hexdigest()[:16]


def seed(data_dir: Path) -> None:
    """Put a migrated cluster into `data_dir`, where no PostgreSQL runs yet."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # runs at the same time make it once
        ready = CACHE / f"migrated-{fingerprint()}"
        if not ready.exists():
            _make(ready)
        stores.private_folder(data_dir)
        shutil.copytree(ready, data_dir / "pg")


def _make(ready: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"fairway-test-{os.getpid()}-") as name:
        folder = Path(name)
        server = start_postgres(folder, durable=False)
        try:
            _migrate(folder, server)
        finally:
            server.stop()
        unfinished = CACHE / f"unfinished-{os.getpid()}"
        shutil.copytree(folder / "pg", unfinished)
        unfinished.rename(ready)
    clusters = sorted(CACHE.glob("migrated-*"), key=lambda path: path.stat().st_mtime)
    for old in clusters[:-KEPT]:
        shutil.rmtree(old)


def _migrate(folder: Path, server: Store) -> None:
    told = {
        "DATABASE_URL": server.url,
        "DATA_DIR": str(folder),
        "SECRET_KEY": "for migrating only",
        "DJANGO_SETTINGS_MODULE": "portal.settings",
    }
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--no-input", "-v", "0"],
        cwd=ROOT, env={**os.environ, **told}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"the migrations fail:\n{done.stderr[-4000:]}"
    with psycopg.connect(server.url, dbname="postgres", autocommit=True) as link:
        link.execute(f"CREATE DATABASE {TESTS} TEMPLATE {OURS}")
