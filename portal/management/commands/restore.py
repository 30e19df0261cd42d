"""`manage.py restore FILE`: put a backup in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal import backups
from portal.stores.errors import StoreError
from quotas import directory


class Command(BaseCommand):
    help = "Restores a backup; stop the other programs first. Redis is brought up to date after it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--replace", action="store_true", help="lose what the database holds")

    def handle(self, **options: Any) -> None:
        try:
            backups.load(options["file"].resolve(), replace=options["replace"])
        except (backups.BackupError, StoreError, OSError) as error:
            raise CommandError(str(error)) from None
        if not settings.EMBEDDED_REDIS:
            directory.publish_soon(None)  # the embedded one is not running now
        self.stdout.write("Restored. Start everything again; `prepare` updates older tables.")
