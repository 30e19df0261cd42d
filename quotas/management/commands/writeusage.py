"""`manage.py writeusage`: the usage writer, for ever or for one round."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from quotas.usage_writer import UsageWriter


class Command(BaseCommand):
    help = "Carries usage from Redis into PostgreSQL and keeps the directory published."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="write what is there, then end")

    def handle(self, **options: Any) -> None:
        writer = UsageWriter()
        if options["once"]:
            while writer.step():
                pass
            return
        stop = threading.Event()

        def ask_to_stop(_signal: int, _frame: FrameType | None) -> None:
            stop.set()

        signal.signal(signal.SIGTERM, ask_to_stop)
        signal.signal(signal.SIGINT, ask_to_stop)
        self.stdout.write("usage writer ready")
        writer.run(stop)
