"""What has to be true before the programs start: tables, static files, an admin, an engine.

Every step may run again at any time and from several hosts at once; it changes only what is
missing. `make up` and the container setup share these steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction

from portal.accounts import first_password
from portal.stores import status
from portal.stores.errors import StoreError
from quotas.models import ApiKey, Replica, User
from quotas.services import engines, keys

MIGRATION_LOCK = 0x46616972  # any fixed number; every host that migrates this database takes it
ADMIN = "admin"
DEMO_NAME = "demo"
FIRST_KEY_NAME = "first steps"


@dataclass(frozen=True)
class Admin:
    """The first administrator; the password is only known when it was made just now."""

    username: str
    password: str | None


def await_stores(patience_s: float) -> None:
    """Wait for stores that are only just starting; fail with one sentence when they do not."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            return status.require(settings.DATABASE_URL, settings.REDIS_URL)
        except StoreError:
            if time.monotonic() > give_up:
                raise
        time.sleep(0.5)


def migrate() -> None:
    """Bring the tables up to date, one host at a time, without stopping a busy database.

    A migration waits at most four seconds for a lock: while it waits, every query behind it
    waits too. It then fails and can be run again.
    """
    with _alone():
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '4s'")
        try:
            call_command("migrate", interactive=False, verbosity=0)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")


@contextmanager
def _alone() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])


def collect_static() -> None:
    """Collect the static files for production when any of them has changed."""
    if not settings.PRODUCTION:
        return  # development serves them from where they lie
    stamp = Path(settings.STATIC_ROOT) / ".collected"
    wanted = _static_fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    call_command("collectstatic", interactive=False, verbosity=0)
    stamp.write_text(wanted)


def _static_fingerprint() -> str:
    found = hashlib.sha256()
    for finder in get_finders():
        for path, storage in finder.list(None):
            status = Path(storage.path(path)).stat()
            found.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return found.hexdigest()


def ensure_admin() -> Admin:
    """Return the first administrator, made with a one-time password if there is none."""
    there = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if there is not None:
        return Admin(there.username, None)
    password = secrets.token_urlsafe(12)
    with transaction.atomic():
        made = User.objects.create_superuser(username=ADMIN, email="", password=None)
        first_password.give(made, password)
    return Admin(made.username, password)


def first_key(username: str) -> str | None:
    """Return the secret of a key for first steps, or None when one was made before."""
    owner = User.objects.get(username=username)
    if ApiKey.objects.filter(owner=owner).exists():
        return None
    return keys.issue(owner=owner, name=FIRST_KEY_NAME, service_class="interactive").secret


def wants_demo_engine() -> bool:
    """Answer whether the demo engine should run: until an engine of one's own is registered."""
    if settings.ENGINE_URL:
        return False
    demo = Replica.objects.filter(name=DEMO_NAME).first()
    if demo is not None:
        return demo.state != Replica.State.DISABLED
    return not Replica.objects.exists()


def register_demo_engine(*, url: str, model: str, slots: int, context: int) -> None:
    """Register the demo engine, or move it to the port it has this time."""
    there = Replica.objects.filter(name=DEMO_NAME).first()
    if there is not None:
        engines.update(replica=there, url=url, slots=slots)
        return
    engines.register(
        url=url, pool=model, kind="llamacpp", slots=slots, name=DEMO_NAME, context=context
    )


def register_own_engine() -> None:
    """Register the engine named by ENGINE_URL; the demo engine leaves the books."""
    for demo in Replica.objects.filter(name=DEMO_NAME):
        engines.remove(replica=demo)
    known = Replica.objects.filter(url=engines.check_url(settings.ENGINE_URL)).first()
    told = bool(settings.ENGINE_SLOTS or settings.ENGINE_KIND)
    api_key = settings.ENGINE_API_KEY or None
    if known and not told:
        # It may be down just now; that is for the status page to say.
        if api_key and engines.api_key_of(known) != api_key:
            engines.update(replica=known, api_key=api_key)
        return
    options = ["--json"]
    if settings.ENGINE_SLOTS:
        options += ["--slots", str(settings.ENGINE_SLOTS)]
    if settings.ENGINE_KIND:
        options += ["--kind", settings.ENGINE_KIND]
    try:
        with Path(os.devnull).open("w") as nowhere:
            call_command(
                "addengine", settings.ENGINE_URL, *options, stdout=nowhere, shown_key=api_key
            )
    except CommandError as error:
        raise CommandError(
            f"The engine of ENGINE_URL is not registered: {str(error).partition(' Give ')[0]} "
            "Start it first; what it does not tell goes into ENGINE_SLOTS and ENGINE_KIND."
        ) from None


def a_model() -> str:
    """Return the name of a model that people can ask for, or an empty text."""
    replica = Replica.objects.filter(state=Replica.State.ACTIVE).select_related("pool").first()
    return replica.pool.name if replica else ""


def curl(*, base_url: str, secret: str, model: str) -> str:
    """Return a command that streams one answer through the gateway."""
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "messages": [{"role": "user", "content": "Say hello in one sentence."}],
            "max_tokens": 60,
        }
    )
    return (
        f"curl -N {base_url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {secret}' \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d '{body}'"
    )
