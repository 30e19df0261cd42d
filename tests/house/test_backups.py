"""Backup and restore between two installations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from django.conf import LazySettings

from portal import backups, stores
from portal.stores import embedded
from portal.stores.errors import StoreError

# Partitions and what hangs on them are what a plain restore cannot take away.
TABLES = (
    "CREATE TABLE usage (at date, note text, PRIMARY KEY (at)) PARTITION BY RANGE (at);"
    "CREATE TABLE usage_default PARTITION OF usage DEFAULT;"
    "INSERT INTO usage VALUES ('2026-01-01', 'kept')"
)
Installation = Callable[[str], Path]


@pytest.fixture
def installation(settings: LazySettings, tmp_path: Path) -> Installation:
    """Return a function that makes the settings those of an installation of that name."""

    def use(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings.DATA_DIR, settings.MEDIA_ROOT = folder, folder / "files"
        settings.DATABASE_URL = stores.postgres_url(folder)
        settings.EMBEDDED_DATABASE = True
        return folder

    return use


def sql(folder: Path, query: str) -> list[tuple[object, ...]]:
    """Run a query on the embedded server of a data folder."""
    store = embedded.start_postgres(folder)
    try:
        with psycopg.connect(store.url) as link:
            answer = link.execute(query)
            return answer.fetchall() if answer.description else []
    finally:
        store.stop()


def test_backup_brings_database_and_files_to_another_installation(
    installation: Installation, tmp_path: Path
) -> None:
    """
    What one installation holds is in the other after a restore; a second restore refuses to
    overwrite it unless it is told to, and then loses nothing of the backup.
    """
    file = tmp_path / "backup.tar"
    old = installation("old")
    sql(old, TABLES)
    (old / "files").mkdir()
    (old / "files" / "input.jsonl").write_text("{}\n")
    backups.save(file)

    new = installation("a new one")
    backups.load(file, replace=False)

    assert sql(new, "SELECT note FROM usage") == [("kept",)]
    assert (new / "files" / "input.jsonl").read_text() == "{}\n"
    with pytest.raises(backups.BackupError, match="not empty"):
        backups.load(file, replace=False)
    sql(new, "UPDATE usage SET note = 'changed'")
    backups.load(file, replace=True)
    assert sql(new, "SELECT note FROM usage") == [("kept",)]


def test_backup_can_be_read_by_its_owner_only(installation: Installation, tmp_path: Path) -> None:
    """A backup holds everybody's data, so nobody else may open it."""
    installation("one")
    backups.save(tmp_path / "backup.tar")

    assert (tmp_path / "backup.tar").stat().st_mode & 0o077 == 0


def test_running_installation_is_not_restored_over(
    installation: Installation, tmp_path: Path
) -> None:
    """A restore under running programs would pull the tables from under them; it is refused."""
    folder = installation("one")
    backups.save(tmp_path / "backup.tar")

    with embedded.owned(folder), pytest.raises(StoreError, match="in use"):
        backups.load(tmp_path / "backup.tar", replace=True)


def test_file_that_is_no_backup_is_refused_by_name(
    installation: Installation, tmp_path: Path
) -> None:
    """A file that is no backup of ours is named, and the database is not even started."""
    folder = installation("one")
    wrong = tmp_path / "holiday.tar"
    wrong.write_text("not a tar")

    with pytest.raises(backups.BackupError, match=r"holiday\.tar is no backup"):
        backups.load(wrong, replace=True)
    assert not (folder / "pg").exists()
