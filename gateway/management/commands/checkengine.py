"""Asks an engine what it is and says what to set: `manage.py checkengine http://gpu1:8000`."""

from __future__ import annotations

import asyncio
import getpass
import json
import logging
import os
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DatabaseError

from gateway.config import Environment
from gateway.engines import fetch
from gateway.engines.check import Check, Trouble, check
from quotas.models import Replica
from quotas.services import engines
from quotas.snapshots.addresses import BadAddress, allowed_hosts, engine_url, refused_answers


class Command(BaseCommand):
    """Find out what answers at an address and how to register it."""

    help = "Tell in plain words what engine answers at an address, and what to set there and here."
    stealth_options = ("shown_key",)  # how addengine hands one on

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the address and the form of the answer."""
        parser.add_argument("url", help="the engine's address, such as http://127.0.0.1:8080")
        parser.add_argument("--json", action="store_true", help="print JSON for machines")
        parser.add_argument("--timeout", type=float, default=5.0, help="seconds to wait (5)")
        parser.add_argument(
            "--api-key",
            action="store_true",
            help="ask for the engine's own key, or read it from standard input; a registered "
            "engine is asked with the key it was registered with",
        )
        parser.add_argument(
            "--typed",
            action="store_true",
            help="the address was typed into a form: apply ENGINE_HOSTS to it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask, judge, print."""
        url = _address(options["url"], typed=options["typed"])
        key = options.get("shown_key") or (_typed_key() if options["api_key"] else "")
        found = asyncio.run(_ask(url, options["timeout"], key))
        if found.trouble is Trouble.NO_KEY and (known := _known_key(url)):
            found = asyncio.run(_ask(url, options["timeout"], known))
        if options["json"]:
            self.stdout.write(json.dumps(found.as_json(), indent=2))
        else:
            self.stdout.write("\n".join(found.lines()))
        if not found.usable:
            raise CommandError(f"{url} cannot be used now.")


def _typed_key() -> str:
    """Read a key without showing it; it stands in no command line and no list of processes."""
    if sys.stdin.isatty():
        return getpass.getpass("The engine's own key: ").strip()
    return sys.stdin.readline().strip()


def _known_key(url: str) -> str:
    """Return the key this engine was registered with, or is named with in the environment."""
    if settings.ENGINE_API_KEY and url == settings.ENGINE_URL.rstrip("/"):
        return str(settings.ENGINE_API_KEY)
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # no database is no news here
    try:
        replica = Replica.objects.filter(url=url).first()
    except (DatabaseError, OSError):  # engines are looked at before there is a database, too
        return ""
    return engines.api_key_of(replica) if replica else ""


def _address(text: str, *, typed: bool) -> str:
    """Return the address in its plain form; one typed into a form must be on the list."""
    hosts = Environment(os.environ).names("ENGINE_HOSTS") if typed else {"any"}
    allowed = allowed_hosts(hosts, [os.environ.get("ENGINE_URL", "")])
    try:
        url = engine_url(text if "://" in text else f"http://{text}", allowed)
    except BadAddress as error:
        raise CommandError(str(error)) from error
    host = urlsplit(url).hostname or ""
    try:
        answers = socket.getaddrinfo(host, None)
    except OSError as error:
        raise CommandError(f"The host name {host} is not known here.") from error
    reason = refused_answers(host, [str(answer[4][0]) for answer in answers], allowed)
    if reason:
        raise CommandError(reason)
    return url


async def _ask(url: str, timeout_s: float, api_key: str) -> Check:
    async with fetch.client() as http:
        engine, pages = await fetch.detect(http, url, timeout_s, api_key=api_key)
    return check(url, engine, pages, key_shown=bool(api_key))
