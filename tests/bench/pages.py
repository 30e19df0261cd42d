"""What each page costs on a full house: queries, server time, bytes.

python -m tests.bench.pages [--people 1000]

Books of ten keys and a thousand requests a person are made by COPY in a database of their own,
first a tenth of it, then all. Each page is asked for by the person with the most usage, who is an
administrator too. A page passes with at most 15 queries, as many at ten times the data, and
300 ms of server time.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.test import Client

MOST_QUERIES, MOST_MS, MOST_BYTES = 15, 300, 150_000
REPEATS = 5
PAGES = (
    "/", "/keys/", "/keys/{key}/", "/keys/{key}/rotate/", "/keys/{key}/revoke/",
    "/usage/", "/usage/?range=24h", "/usage/?range=7d&split=model", "/usage/?range=30d&split=key",
    "/usage/requests/", "/usage/requests/?outcome=failed", "/usage/requests/?model=model-2",
    "/usage/requests/?key={key}",
    "/fairness/?days=30", "/batches/", "/models/", "/quota/", "/quota/grid/",
    "/quota/grid/?limit=queued", "/requests/",
    "/group/", "/profile/", "/status/", "/capacity/", "/docs/", "/docs/limits/", "/docs/?q=queue",
    "/live/mine/", "/live/quota/", "/live/status/",
    "/api/v1/keys", "/api/v1/requests", "/api/v1/usage", "/api/v1/admin/people",
    "/admin/", "/admin/quotas/apikey/", "/admin/quotas/apikey/?q=key-77", "/admin/quotas/user/",
    "/admin/quotas/user/?q=person77", "/admin/quotas/usageevent/", "/admin/quotas/usagehour/",
    "/admin/quotas/group/", "/admin/quotas/replica/", "/admin/pghistory/events/",
)  # fmt: skip
FIRST_PAGES = ("/accounts/login/", "/status/", "/")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one page cost."""

    status: int
    queries: int
    ms: float
    size: int
    compressed: int


def main() -> int:
    """Make the books twice, measure, print the table."""
    options = argparse.ArgumentParser()
    options.add_argument("--people", type=int, default=1000)
    people = options.parse_known_args()[0].people
    with tempfile.TemporaryDirectory(prefix="fairway-bench-") as name, _stores(Path(name)):
        return _run(people)


def _stores(folder: Path) -> Any:
    """Start stores in the folder and set Django up on them."""
    from portal import stores
    from portal.stores import embedded
    from tests.rig.seeding import seed

    seed(folder)
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "DATA_DIR": str(folder),
        "DATABASE_URL": stores.postgres_url(folder),
        "REDIS_URL": stores.valkey_url(folder),
        "SECRET_KEY": "for measuring only, but of fifty characters and a few more",
        "ALLOWED_HOSTS": "testserver",
    }
    return embedded.running(folder, durable=False)


def _run(people: int) -> int:
    import django

    django.setup()
    from django.conf import settings
    from django.db import connection

    from portal.status import source
    from tests.portal.scripted_gateway import ScriptedGateway, busy

    gateway = ScriptedGateway(settings.SECRET_KEY)
    gateway.live = busy("1")
    source._source = source.Source(gateway.url, settings.SECRET_KEY)
    costs: list[dict[str, Cost]] = []
    try:
        for share in (people // 10, people):
            began = time.monotonic()
            fill(share)
            print(f"# {share:,} people, {share * 10:,} keys, {share * 1000:,} requests; made in "
                  f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
            costs.append(measure())
        wrong = _print(*costs)
        for address in FIRST_PAGES:
            size = _transferred(address)
            wrong += size > MOST_BYTES
            print(f"first visit of {address}: {size / 1000:.0f} kB with its files, compressed")
    finally:
        connection.close()
        gateway.stop()
    return 1 if wrong else 0


# The books


def fill(people: int) -> None:
    """Empty the books and fill them by COPY."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE quotas_user, quotas_group, usage_event, usage_hour CASCADE")
        for table, rows in _tables(people):
            names = ", ".join(f'"{name}"' for name in next(rows))
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        cursor.execute(
            "INSERT INTO quotas_group_owners (group_id, user_id) "
            "SELECT group_id, id FROM quotas_user WHERE id = 1"
        )
        cursor.execute("SELECT setval('quotas_user_id_seq', %s)", [people + 1])
        cursor.execute(_hours())
        # As if the keys had been made over months, not in this one moment.
        cursor.execute(
            "UPDATE quotas_apikeyevent "
            "SET pgh_created_at = pgh_created_at - (100000 - pgh_id) * interval '5 min'"
        )
        cursor.execute("ANALYZE")


def _tables(people: int) -> Iterator[tuple[str, Iterator[tuple[Any, ...]]]]:
    yield "quotas_group", _groups(max(1, people // 20))
    yield "quotas_user", _people(people)
    yield "quotas_apikey", _keys(people)
    yield "usage_event", _events(people)


def _groups(count: int) -> Iterator[tuple[Any, ...]]:
    yield ("id", "name", "is_active", "note")
    for n in range(1, count + 1):
        yield (n, f"group {n}", True, "")


def _people(count: int) -> Iterator[tuple[Any, ...]]:
    yield (
        "id", "username", "email", "password", "first_name", "last_name", "is_staff",
        "is_superuser", "is_active", "date_joined", "share", "time_zone", "theme",
        "wants_quota_mail", "group_id",
    )  # fmt: skip
    now, groups = time.strftime("%Y-%m-%d %H:%M:%S+00"), max(1, count // 20)
    for n in range(1, count + 1):
        admin = n == 1
        yield (n, f"person{n}", f"p{n}@example.org", "!", "", "", admin, admin, True, now, 1, "",
               "", False, n % groups + 1)  # fmt: skip


def _keys(people: int) -> Iterator[tuple[Any, ...]]:
    yield (
        "public_id", "owner_id", "name", "service_class", "kind", "end_user_header", "digest",
        "masked", "created_at", "expires_at", "last_used_at",
    )  # fmt: skip
    now = time.time()

    def at(days: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(now + days * 86400))

    for n in range(people * 10):
        owner, kind = n // 10 + 1, "batch" if n % 2 else "interactive"
        yield (f"key_{n}", owner, f"key-{n}", kind, "ordinary", "", f"{n:064x}", "fw_int_Ab3…x9Qz",
               at(-n % 300), at(5 + n % 90), at(-0.01 * (n % 500)))  # fmt: skip


def _events(people: int) -> Iterator[tuple[Any, ...]]:
    """A third of all requests is the first person's; times are spread over thirty days."""
    yield (
        "request_id", "arrived_at", "key_id", "user_id", "group_id", "service_class", "route",
        "model", "replica_id", "outcome", "status", "prompt_tokens", "cached_tokens",
        "completion_tokens", "estimated", "queue_wait_ms", "ttft_ms", "duration_ms",
        "finish_reason", "error_code", "stream", "end_user", "batch_id", "client_request_id",
    )  # fmt: skip
    dice, count, end = random.Random(7), people * 1000, time.time()
    step = 30 * 86400 / count
    groups = max(1, people // 20)
    for n in range(count):
        owner = 1 if n % 3 == 0 else 1 + n * 7919 % people
        key = (owner - 1) * 10 + n // 3 % 10
        at = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(end - n * step))
        wait = int(dice.expovariate(1 / 900))
        failed = n % 50 == 0
        yield (
            f"req_{n}", at, f"key_{key}", owner, owner % groups + 1,
            "batch" if key % 2 else "interactive", "/v1/chat/completions", f"model-{n % 4}",
            f"rep_{n % 3}", "failed" if failed else "served", 502 if failed else 200,
            500 + n % 1000, n % 300, 100 + n % 400, False, wait, wait + 200, wait + 4000, "stop",
            "engine_failed" if failed else "", True, "", "", "",
        )  # fmt: skip


def _hours() -> str:
    from quotas.services.usage import _GROUP, _SUMS

    sums = ", ".join(f"sum({what})" for what in _SUMS.values()).replace("%%", "%")
    return (
        f"INSERT INTO usage_hour (hour, {_GROUP}, {', '.join(_SUMS)}) "
        f"SELECT date_trunc('hour', arrived_at), {_GROUP}, {sums} FROM usage_event "
        f"GROUP BY 1, {_GROUP}"
    )


# Measuring


def measure() -> dict[str, Cost]:
    """Ask for each page as the person with the most usage."""
    from django.test import Client

    from quotas.models import ApiKey, User

    client = Client()  # without Django's test environment, which slows every template down
    client.force_login(User.objects.get(pk=1), "portal.accounts.backends.OneHash")
    key = ApiKey.objects.get(public_id="key_0").public_id
    return {page: _cost(client, page.format(key=key)) for page in PAGES}


def _cost(client: Client, address: str) -> Cost:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client.get(address)  # templates are read, plans are made
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        answer = client.get(address)
        times.append((time.perf_counter() - began) * 1000)
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(address)
    body = b"".join(answer) if answer.streaming else answer.content  # type: ignore[arg-type]
    return Cost(
        answer.status_code, len(queries), statistics.median(times), len(body),
        len(gzip.compress(body)),
    )  # fmt: skip


def _transferred(address: str) -> int:
    """Return the bytes of a first visit: the page and what it names, compressed as sent."""
    from django.contrib.staticfiles import finders
    from django.test import Client

    from quotas.models import User

    client = Client()
    if address == "/":
        client.force_login(User.objects.get(pk=1), "portal.accounts.backends.OneHash")
    page = client.get(address).content
    total = len(gzip.compress(page))
    for name in set(re.findall(rb'(?:href|src)="/static/([^"?]+)"', page)):
        found = finders.find(re.sub(r"\.[0-9a-f]{12}(\.\w+)$", r"\1", name.decode()))
        total += len(gzip.compress(Path(str(found)).read_bytes())) if found else 0
    return total


def _print(small: dict[str, Cost], large: dict[str, Cost]) -> int:
    print(f"\n{'page':42} {'status':>6} {'queries':>9} {'ms':>6} {'kB':>7} {'gzip':>6}")
    wrong = 0
    for page, cost in large.items():
        before = small[page].queries
        bad = cost.status != 200 or cost.queries > MOST_QUERIES or before != cost.queries
        bad = bad or cost.ms > MOST_MS
        wrong += bad
        queries = str(cost.queries) if before == cost.queries else f"{before} > {cost.queries}"
        print(f"{page:42} {cost.status:6} {queries:>9} {cost.ms:6.0f} {cost.size / 1000:7.1f} "
              f"{cost.compressed / 1000:6.1f}{'  <-- over' if bad else ''}")  # fmt: skip
    return wrong


if __name__ == "__main__":
    sys.exit(main())
