"""Asks an engine what it is and says what to set: `manage.py checkengine http://gpu1:8000`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.config import Environment
from gateway.engines import fetch
from gateway.engines.check import Check, check
from quotas.snapshots.addresses import BadAddress, allowed_hosts, engine_url, refused_answers


class Command(BaseCommand):
    """Find out what answers at an address and how to register it."""

    help = "Tell in plain words what engine answers at an address, and what to set there and here."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the address and the form of the answer."""
        parser.add_argument("url", help="the engine's address, such as http://127.0.0.1:8080")
        parser.add_argument("--json", action="store_true", help="print JSON for machines")
        parser.add_argument("--timeout", type=float, default=5.0, help="seconds to wait (5)")
        parser.add_argument(
            "--typed",
            action="store_true",
            help="the address was typed into a form: apply ENGINE_HOSTS to it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask, judge, print."""
        url = _address(options["url"], typed=options["typed"])
        found = asyncio.run(_ask(url, options["timeout"]))
        if options["json"]:
            self.stdout.write(json.dumps(found.as_json(), indent=2))
        else:
            self.stdout.write("\n".join(found.lines()))
        if not found.usable:
            raise CommandError(f"{url} cannot be used now.")


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


async def _ask(url: str, timeout_s: float) -> Check:
    async with fetch.client() as http:
        engine, pages = await fetch.detect(http, url, timeout_s)
    return check(url, engine, pages)
