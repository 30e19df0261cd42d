"""`manage.py addengine URL`: register an engine; what is not said is asked of the engine."""

from __future__ import annotations

import getpass
import io
import json
import sys
from typing import Any

from django.core.management import call_command, get_commands
from django.core.management.base import CommandError, CommandParser

from quotas.management.output import BooksCommand, plain_faults
from quotas.models import Replica
from quotas.services import engines


class Command(BooksCommand):
    help = "Registers an engine replica, or changes the one at that address."
    stealth_options = ("shown_key",)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("url", help="such as http://gpu1:8000")
        parser.add_argument(
            "--pool", "--model", dest="pool", metavar="MODEL", help="the name clients ask for"
        )
        parser.add_argument("--kind", choices=Replica.Kind.values)
        parser.add_argument("--slots", type=int, help="sequences it works on at once")
        parser.add_argument("--name", default="", help="default: the model's name and a number")
        parser.add_argument("--engine-model", default="", help="the engine's own model name")
        parser.add_argument("--prefill-budget", type=int, metavar="TOKENS")
        parser.add_argument("--takes-priority", action="store_true")
        parser.add_argument(
            "--api-key",
            action="store_true",
            help="ask for the key the engine was started with, or read it from standard input",
        )
        parser.add_argument("--card", default="", help="the card it is on; made if missing")

    def handle(self, **options: Any) -> None:
        found: dict[str, Any] = {}
        api_key: str | None = options.get("shown_key")  # None: the one it has stays
        if options["api_key"]:
            api_key = _typed_key()
        if not (options["pool"] and options["kind"] and options["slots"]):
            found = _ask(options["url"], api_key)
        pool = options["pool"] or found.get("model")
        kind = options["kind"] or found.get("kind")
        slots = options["slots"] or found.get("slots")
        if not (pool and kind and slots):
            missing = {"--model": pool, "--kind": kind, "--slots": slots}
            names = " ".join(name for name, value in missing.items() if not value)
            raise CommandError(f"The engine does not tell this itself; please say: {names}")
        with plain_faults():
            replica = engines.register(
                url=options["url"],
                pool=pool,
                kind=kind,
                slots=int(slots),
                name=options["name"],
                prefill_budget=options["prefill_budget"],
                takes_priority=options["takes_priority"],
                card=options["card"],
                model=options["engine_model"] or found.get("model") or "",
                context=found.get("context"),
                api_key=api_key,
            )
        fields = {
            "replica_id": replica.public_id,
            "name": replica.name,
            "model": replica.pool.name,
            "url": replica.url,
            "kind": replica.kind,
            "slots": replica.slots,
            "prefill_budget": replica.prefill_budget,
            "state": replica.state,
            "has_key": bool(replica.sealed_key),
        }
        self.show(fields, as_json=options["json"], title="Registered; in use within 5 seconds")


def _typed_key() -> str:
    """Read a key without showing it; it stands in no command line and no list of processes."""
    if sys.stdin.isatty():
        return getpass.getpass("The engine's own key: ").strip()
    return sys.stdin.readline().strip()


def _ask(url: str, api_key: str | None) -> dict[str, Any]:
    """Let the gateway's own command look at the engine; {} when it cannot tell."""
    if "checkengine" not in get_commands():
        return {}
    with plain_faults():
        url = engines.check_url(url)
    out = io.StringIO()
    try:
        call_command("checkengine", url, "--json", stdout=out, shown_key=api_key)
    except CommandError as error:
        raise CommandError(
            f"{error} Give --model, --kind and --slots to register it anyway."
        ) from error
    facts: dict[str, Any] = json.loads(out.getvalue() or "{}").get("facts", {})
    return facts
