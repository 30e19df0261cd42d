"""`manage.py up`: the whole setup in one terminal."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from portal import preparation
from portal.launch import STORE_LOGS, Launch, Welcome
from portal.stores.errors import StoreError
from portal.supervisor import SupervisorError

COLOURS = (36, 33, 32, 35, 34, 31)
NAME_WIDTH = 9
NO_SPACE = "No space left on device"
DISK_FULL = f"The disk of {settings.DATA_DIR} is full: free some space, or set DATA_DIR elsewhere."
LAST = 2000  # characters of a log that tell why it ended


class Command(BaseCommand):
    help = "Starts the stores, the portal, the gateway, the workers and a demo engine."

    def handle(self, **options: Any) -> None:
        launch = Launch(say=self.line, welcome=self.greet)
        try:
            asyncio.run(launch.run())
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from None
        except (StoreError, SupervisorError, PermissionError) as error:
            raise CommandError(DISK_FULL if NO_SPACE in str(error) else str(error)) from None
        except Exception as error:
            if not _is_disk_full(error):
                raise
            raise CommandError(DISK_FULL) from None

    def line(self, name: str, text: str) -> None:
        """Print one line of one program, marked with its name."""
        mark = f"{name:<{NAME_WIDTH}}|"
        if self.stdout.isatty():
            mark = f"\033[{COLOURS[sum(name.encode()) % len(COLOURS)]}m{mark}\033[0m"
        self.stdout.write(f"{mark} {text}")
        self.stdout.flush()

    def greet(self, welcome: Welcome) -> None:
        """Print where it is, how to sign in, and a first request."""
        url, manage = settings.PUBLIC_URL, f"{_python()} manage.py"
        name, password = welcome.admin.username, welcome.admin.password
        lines = ["", f"Fairway is up: {url}", ""]
        if password:
            lines.append(f"  Sign in as {name} with the password {password}")
            lines.append("  It is shown this once, and you choose your own when you sign in.")
        else:
            lines.append(f"  Sign in as {name} (forgotten: {manage} changepassword {name})")
        if welcome.secret and welcome.model:
            lines += ["", "  A first answer, with a key made for you just now:", ""]
            lines.append(preparation.curl(base_url=url, secret=welcome.secret, model=welcome.model))
        else:
            lines.append(f"  Make a key on {url}/keys/ or with:")
            lines.append(f"  {manage} issuekey --user {name} --class interactive")
        lines += ["", "  Ctrl-C stops everything; the data stays in " + str(settings.DATA_DIR), ""]
        self.stdout.write("\n".join(lines))
        self.stdout.flush()


def _python() -> str:
    """Return how a person in this folder would write the interpreter's path."""
    path = Path(sys.executable)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(shown))


def _is_disk_full(error: Exception) -> bool:
    """Look also into what the stores said last: their clients only see them gone."""
    logs = [settings.DATA_DIR / name for name in STORE_LOGS]
    ends = [log.read_text(errors="replace")[-LAST:] for log in logs if log.exists()]
    return any(NO_SPACE in text for text in (str(error), *ends))
