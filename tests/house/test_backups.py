"""Backup and restore between two installations, as an operator does it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.house.source import ROOT


def manage(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {n: v for n, v in os.environ.items() if n not in {"DATABASE_URL", "REDIS_URL"}}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**env, "DATA_DIR": str(folder)},
        capture_output=True,
        text=True,
    )


def run(folder: Path, *arguments: str) -> str:
    done = manage(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_backup_brings_database_and_files_to_another_installation(tmp_path: Path) -> None:
    """
    A backup taken from one data folder and restored into a new one brings its people and files
    along; a second restore refuses to overwrite them unless it is told to.
    """
    old, new, file = tmp_path / "old", tmp_path / "new one", tmp_path / "backup.tar"
    fill = (
        "from django.core.management import call_command; call_command('migrate', verbosity=0);"
        "from quotas.models import User; User.objects.create_user('bob')"
    )
    python = (sys.executable, "manage.py", "shell", "-v0", "-c")
    run(old, "stores", "run", "--", *python, fill)
    (old / "files").mkdir()
    (old / "files" / "input.jsonl").write_text("{}\n")

    run(old, "backup", str(file))
    run(new, "restore", str(file))

    count = "from quotas.models import User; print(User.objects.filter(username='bob').count())"
    assert run(new, "stores", "run", "--", *python, count).strip() == "1"
    assert (new / "files" / "input.jsonl").read_text() == "{}\n"
    assert file.stat().st_mode & 0o077 == 0
    refused = manage(new, "restore", str(file))
    assert refused.returncode != 0
    assert "--replace" in refused.stderr
    run(new, "restore", "--replace", str(file))


def test_file_that_is_no_backup_changes_nothing(tmp_path: Path) -> None:
    """A file that is no backup of ours is refused by name before the database is touched."""
    wrong = tmp_path / "holiday.tar"
    wrong.write_text("not a tar")

    done = manage(tmp_path / "data", "restore", str(wrong))

    assert done.returncode != 0
    assert f"{wrong} is no backup" in done.stderr
