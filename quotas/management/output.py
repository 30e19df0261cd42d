"""How the commands of the books speak: a table for people, JSON for scripts, one plain fault."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import pghistory
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table


class BooksCommand(BaseCommand):
    """A command with --json whose faults are sentences, not tracebacks."""

    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON for scripts")

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run with the command's name, and the account it was typed in, in the audit trail."""
        name = self.__module__.rsplit(".", 1)[-1]
        with pghistory.context(command=f"{name} by {_account()}"):
            return super().execute(*args, **options)

    def show(self, fields: Mapping[str, Any], *, as_json: bool, title: str = "") -> None:
        """Print one thing: a two-column table, or a JSON object."""
        if as_json:
            write_json(self.stdout, fields)
            return
        table = Table(title=title or None, show_header=False, box=None)
        for name, value in fields.items():
            table.add_row(f"[bold]{name.replace('_', ' ')}", _plain(value))
        print_table(self.stdout, table)

    def show_rows(
        self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, title: str = ""
    ) -> None:
        """Print many things as a table; numbers to the right."""
        table = Table(title=title or None, header_style="bold")
        for column in columns:
            is_number = any(isinstance(row[column], int) for row in rows)
            table.add_column(column.replace("_", " "), justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*(_plain(row[column]) for column in columns))
        print_table(self.stdout, table)


def write_json(out: Any, value: Any) -> None:
    """Write one JSON text; times become ISO 8601."""
    out.write(json.dumps(value, default=_encode, ensure_ascii=False))


def print_table(out: Any, table: Table) -> None:
    """Write a table where Django's command writes, so that `call_command(stdout=…)` sees it."""
    stream: TextIO = getattr(out, "_out", out)
    Console(file=stream, soft_wrap=not stream.isatty(), highlight=False).print(table)


@contextmanager
def plain_faults() -> Iterator[None]:
    """Turn what a service refuses into the command's one-sentence error."""
    try:
        yield
    except ValidationError as error:
        raise CommandError("; ".join(error.messages)) from error


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def _encode(value: Any) -> str:
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    return str(value)


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value).replace("[", "\\[")
