"""One file that holds an installation: its database and its uploaded files.

PostgreSQL's own tools do the work, so a backup of the embedded server can be restored into a
server of one's own and the other way round. Redis is not in it: everything there is rebuilt.
The secret key is not in it either; without the old one people sign in again.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.conf import settings

from portal import logs
from portal.stores import data_folder, embedded, postgres

DUMP, FILES, ABOUT = "database.dump", "files", "about.json"
FORMAT = 1


class BackupError(Exception):
    """Nothing was written or changed; the message is one plain sentence."""


@contextmanager
def database(*, alone: bool) -> Iterator[str]:
    """Yield the database's address, with the embedded server started when it does not run.

    `alone` refuses an embedded one that runs, because those who use it would not survive.
    """
    if not settings.EMBEDDED_DATABASE or (not alone and postgres.is_ready(settings.DATA_DIR)):
        yield settings.DATABASE_URL
        return
    with embedded.owned(settings.DATA_DIR):
        store = embedded.start_postgres(settings.DATA_DIR)
        try:
            yield store.url
        finally:
            store.stop()


def save(target: Path) -> None:
    """Write a backup to `target`, which appears only when it is whole."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    with database(alone=False) as url, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        dump, about = Path(scratch) / DUMP, Path(scratch) / ABOUT
        _run("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={dump}", url)
        about.write_text(json.dumps({"format": FORMAT, "made_at": _now()}))
        try:
            with (
                os.fdopen(_create(unfinished), "wb") as file,
                tarfile.open(None, "w:", file) as tar,
            ):
                tar.add(about, ABOUT)
                tar.add(dump, DUMP)
                if settings.MEDIA_ROOT.exists():
                    tar.add(settings.MEDIA_ROOT, FILES)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(target)
        finally:
            unfinished.unlink(missing_ok=True)


def load(source: Path, *, replace: bool) -> None:
    """Put a backup's contents in place of what is there; an empty database needs no `replace`."""
    with tempfile.TemporaryDirectory(dir=data_folder(settings.DATA_DIR)) as scratch:
        _unpack(source, Path(scratch))
        with database(alone=True) as url:
            if not replace and _tables(url):
                raise BackupError(
                    "The database is not empty: restore into a new DATA_DIR, "
                    "or say --replace to lose what it holds."
                )
            _replace_tables(url, Path(scratch))
        _put_files(Path(scratch) / FILES)


def _unpack(source: Path, folder: Path) -> None:
    try:
        with tarfile.open(source) as tar:
            tar.extractall(folder, filter="data")
        about = json.loads((folder / ABOUT).read_text())
    except (tarfile.TarError, OSError, ValueError) as error:
        raise BackupError(f"{source} is no backup of Fairway ({error}).") from None
    if about.get("format") != FORMAT:
        raise BackupError(f"{source} was made by another version of Fairway; restore it with that.")


def _replace_tables(url: str, unpacked: Path) -> None:
    """Exchange all tables in one transaction; pg_restore alone cannot drop partitioned ones."""
    script, head = unpacked / "restore.sql", unpacked / "head.sql"
    _run("pg_restore", "--no-owner", "--no-privileges", f"--file={script}", str(unpacked / DUMP))
    head.write_text("DROP SCHEMA public CASCADE; CREATE SCHEMA public;\n")
    _run(
        "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction",
        f"--file={head}", f"--file={script}", url,
    )  # fmt: skip


def _put_files(unpacked: Path) -> None:
    """Exchange the files folder; the old one goes only when the new one is in its place."""
    old = settings.MEDIA_ROOT.with_name("files.old")
    unpacked.mkdir(exist_ok=True)
    if settings.MEDIA_ROOT.exists():
        settings.MEDIA_ROOT.rename(old)
    unpacked.rename(settings.MEDIA_ROOT)
    shutil.rmtree(old, ignore_errors=True)


def _tables(url: str) -> int:
    with psycopg.connect(url) as link:
        row = link.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    return int(row[0]) if row else 0


def _run(tool: str, *arguments: str) -> None:
    """Run one of PostgreSQL's tools, whose own words explain a failure best."""
    argv = [str(postgres.binaries() / tool), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        said = logs.without_secrets(done.stderr.strip().splitlines()[0] if done.stderr else "")
        raise BackupError(f"{tool} failed: {said or f'status {done.returncode}'}")


def _create(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
