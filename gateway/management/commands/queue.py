"""Shows who runs, who waits, and why, as the gateway knows it at this moment."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table

from quotas.snapshots.credentials import Credential, sign

BLOCKERS = {
    "own_cap": "at its own cap",
    "batch_pool": "batch has its share",
    "reserved": "reserved for a group",
    "slots": "all slots taken",
    "prefill": "long prompts in progress",
    "kv": "engine short of memory",
    "no_replica": "no engine up",
    "scheduler": "about to start",
}


class Command(BaseCommand):
    help = "Shows who runs, who waits, and why."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the raw picture")

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask the gateway and print."""
        live = self._ask()
        if options["json"]:
            self.stdout.write(json.dumps(live))
            return
        names = self._names(live)
        console = Console(file=self.stdout)  # type: ignore[arg-type]
        running = Table("user", "class", "model", "engine", "sequences", "running", title="running")
        for row in live["running"]:
            running.add_row(
                names.get(row["user_id"], row["user_id"]), row["service_class"], row["pool"],
                row["replica_id"], str(row["weight"]), f"{row['running_s']:.0f} s",
            )  # fmt: skip
        queued = Table(
            "place", "user", "class", "model", "waiting", "expected", "why", title="waiting"
        )
        for row in live["queued"]:
            wait = row["expected_wait_s"]
            queued.add_row(
                str(row["position"]), names.get(row["user_id"], row["user_id"]),
                row["service_class"], row["pool"], f"{row['queued_s']:.0f} s",
                "unknown" if wait is None else f"{wait:.0f} s",
                BLOCKERS.get(row["blocker"], row["blocker"]),
            )  # fmt: skip
        console.print(running)
        console.print(queued)

    def _ask(self) -> dict[str, Any]:
        credential = Credential("live", "", time.time() + 60)
        headers = {"Authorization": f"Bearer {sign(settings.SECRET_KEY, credential)}"}
        url = f"{settings.GATEWAY_URL}/internal/live"
        try:
            answer = httpx.get(url, headers=headers, timeout=5.0, trust_env=False)
            answer.raise_for_status()
            live: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise CommandError(
                f"The gateway at {settings.GATEWAY_URL} does not answer ({error}). "
                "Is it running, and is GATEWAY_URL right?"
            ) from error
        return live

    @staticmethod
    def _names(live: dict[str, Any]) -> dict[str, str]:
        """Return user names by id; end users of application keys stay as they are."""
        ids = {row["user_id"] for row in live["queued"] + live["running"]}
        numbers = [int(one) for one in ids if one.isdigit()]
        users = get_user_model().objects.filter(pk__in=numbers)
        return {str(user.pk): user.get_username() for user in users}
