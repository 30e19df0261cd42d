"""`manage.py stores`: where the stores are, how they are, and running them for one command."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.stores import embedded, status
from portal.stores.errors import StoreError


class Command(BaseCommand):
    help = "Shows the addresses of PostgreSQL and Redis, or runs the embedded ones for a command."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        action = parser.add_subparsers(dest="action", required=True)
        for name, text in (("url", "print both addresses"), ("status", "ask both for an answer")):
            one = action.add_parser(name, help=text)
            one.add_argument("--json", action="store_true")
        run = action.add_parser("run", help="run a command with the stores started around it")
        run.add_argument("--temporary", action="store_true", help="on an empty folder of its own")
        run.add_argument("argv", nargs=argparse.REMAINDER, help="-- the command and its arguments")

    def handle(self, **options: Any) -> None:
        match options["action"]:
            case "url":
                self._show(
                    {"database": settings.DATABASE_URL, "redis": settings.REDIS_URL}, options
                )
            case "status":
                states = {
                    "database": _state(status.postgres, settings.DATABASE_URL),
                    "redis": _state(status.valkey, settings.REDIS_URL),
                }
                self._show(states, options)
                if any(not state.startswith("up") for state in states.values()):
                    raise SystemExit(1)
            case "run":
                raise SystemExit(self._run(options))

    def _show(self, fields: dict[str, str], options: dict[str, Any]) -> None:
        if options["json"]:
            self.stdout.write(json.dumps(fields))
            return
        for name, value in fields.items():
            self.stdout.write(f"{name:<9} {value}")

    def _run(self, options: dict[str, Any]) -> int:
        argv = [part for part in options["argv"] if part != "--"] or ["true"]
        with tempfile.TemporaryDirectory(prefix="fairway-") as scratch:
            folder = Path(scratch) if options["temporary"] else settings.DATA_DIR
            try:
                with embedded.running(folder, durable=not options["temporary"]):
                    env = {**os.environ, "DATA_DIR": str(folder)}
                    return subprocess.run(argv, env=env, check=False).returncode
            except StoreError as error:
                raise CommandError(str(error)) from None


def _state(ask: Callable[[str], str], url: str) -> str:
    try:
        return f"up, {ask(url)}"
    except StoreError as error:
        return f"down: {error}"
