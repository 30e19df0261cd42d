"""`manage.py backup FILE`: the database and the uploaded files in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal import backups
from portal.stores.errors import StoreError


class Command(BaseCommand):
    help = "Writes the database and the uploaded files to one file; everything may keep running."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)

    def handle(self, **options: Any) -> None:
        target: Path = options["file"].resolve()
        if not target.parent.is_dir():
            raise CommandError(f"There is no folder {target.parent}.")
        try:
            backups.save(target)
        except (backups.BackupError, StoreError, OSError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{target} holds {target.stat().st_size / 2**20:.1f} MiB; keep it safe.")
