"""What the usage database costs at its size.

    python -m tests.bench.usage rows FOLDER [ROWS]   make usage-rows: a database of so many requests
    python -m tests.bench.usage measure FOLDER       make usage-bench: one table; 1 if one is missed

The database is a cluster of its own, without fsync, so that the disk of a shared machine says
little. Ratios are of one run; milliseconds are of this machine.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from portal.stores.embedded import start_postgres, start_valkey

ROWS = 10_000_000
RECORDS = 10_000
EXPORTED = 1_000_000
PAGES = ("/", "/usage/", "/usage/?range=30d&split=key", "/usage/requests/", "/fairness/")
ADMIN_PAGES = ("/admin/", "/admin/quotas/usagehour/", "/admin/quotas/usageevent/", "/quota/grid/")


@contextmanager
def installation(folder: Path) -> Iterator[None]:
    """Run the stores of the folder, and Django on them."""
    from tests.rig.seeding import seed

    if not (folder / "pg").exists():
        seed(folder)
    servers = [start_postgres(folder, durable=False), start_valkey(folder, durable=False)]
    os.environ |= {
        "DATA_DIR": str(folder), "DATABASE_URL": servers[0].url, "REDIS_URL": servers[1].url,
        "DJANGO_SETTINGS_MODULE": "portal.settings", "SECRET_KEY": "of a measurement",
    }  # fmt: skip
    import django

    django.setup()
    try:
        yield
    finally:
        from django.db import connections

        connections.close_all()
        for server in servers:
            server.stop()


def fill(rows: int) -> None:
    """Make so many requests of the thirty days before today."""
    from django.db import connection

    from quotas.models import UsageEvent
    from quotas.services import partitions
    from tests.quotas import volume

    have = UsageEvent.objects.count()
    if have == rows:
        print(f"{rows:,} rows are there already")
        return
    assert not have, f"the database holds {have:,} rows; remove its folder first"
    began = time.monotonic()
    for days in (-31, -1, 0):
        partitions.ensure(now=volume.END + dt.timedelta(days=days))
    with connection.cursor() as cursor, without_indexes(cursor):
        volume.fill(rows)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) usage_event")
        cursor.execute("VACUUM (ANALYZE) usage_hour")
        cursor.execute("SELECT pg_size_pretty(pg_database_size(current_database()))")
        size = cursor.fetchone()[0]
    print(f"{rows:,} rows, {size}, {time.monotonic() - began:.0f} s")


@contextmanager
def without_indexes(cursor: Any) -> Iterator[None]:
    """Make the indexes behind the rows: half the time of keeping them in order meanwhile."""
    cursor.execute(
        "SELECT c.relname, pg_get_indexdef(i.indexrelid) FROM pg_index i "
        "JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = 'usage_event'::regclass AND NOT i.indisprimary"
    )
    indexes = cursor.fetchall()
    for name, _ in indexes:
        cursor.execute(f'DROP INDEX "{name}"')
    yield
    for _, definition in indexes:
        # What is read back says ONLY, which would leave the partitions without.
        cursor.execute(definition.replace(" ON ONLY ", " ON "))


class Table:
    """The figures, and those that miss their bound."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def add(self, what: str, figure: str, *, holds: bool = True) -> None:
        print(f"{what:<58} {figure:>28} {'' if holds else '  MISSED'}", flush=True)
        if not holds:
            self.missed.append(what)


def explained(query: Any, times: int = 5) -> tuple[float, str]:
    """Return the median of the execution time in milliseconds, and the plan."""
    found = [query.explain(format="json", analyze=True, buffers=True) for _ in range(times)]
    return median(json.loads(text)[0]["Execution Time"] for text in found), found[-1]


def chart(table: Table) -> None:
    """Hold the busiest user's 30 days from the hours against the same from single requests."""
    from quotas import reports
    from tests.quotas.test_usage_speed import BUSIEST, MONTH, raw_chart

    rollup_ms, plan = explained(reports.query(["day"], MONTH, BUSIEST))
    raw_ms, _ = explained(raw_chart(), times=2)
    reads_rows = "usage_event" in plan or '"Seq Scan"' in plan
    table.add("30-day chart, busiest user: from the hours", f"{rollup_ms:.1f} ms")
    table.add("the same from single requests", f"{raw_ms:.0f} ms")
    table.add("ratio (20 wanted)", f"{raw_ms / rollup_ms:.0f}", holds=raw_ms >= 20 * rollup_ms)
    table.add("its plan reads no request, and nothing in sequence", "", holds=not reads_rows)


def pages(table: Table) -> None:
    """Count the queries of each page and time it for the busiest user and an administrator."""
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from quotas.models import User

    for person, paths in ((User.objects.get(pk=1), PAGES), (_admin(), (*PAGES, *ADMIN_PAGES))):
        browser = Client(HTTP_HOST="localhost")
        browser.force_login(person)
        for path in paths:
            assert browser.get(path).status_code == 200, path  # the first fills caches
            with CaptureQueriesContext(connection) as queries:
                began = time.perf_counter()
                browser.get(path)
                ms = (time.perf_counter() - began) * 1000
            name = f"{person.username} {path}"
            table.add(name, f"{ms:.0f} ms, {len(queries)} queries", holds=len(queries) <= 15)


def _admin() -> Any:
    from quotas.models import User

    fields = {"id": 100_000, "is_staff": True, "is_superuser": True}
    return User.objects.get_or_create(username="bench-admin", defaults=fields)[0]


def cpu_of(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and own CPU seconds of some work."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def writing(table: Table) -> None:
    """Write the same records by COPY, the writer's way and by Django's bulk insert, in turn."""
    from django.db import connection, transaction

    from quotas.models import UsageEvent
    from quotas.services import usage
    from quotas.usage_rows import COLUMNS, TYPES, parse
    from tests.quotas.helpers import record

    raw = [record(n).to_json() for n in range(RECORDS)]
    parse_s = min(cpu_of(lambda: [parse(line) for line in raw])[1] for _ in range(3))
    parsed = [parse(line) for line in raw]
    rows = [UsageEvent(**dict(zip(COLUMNS, item.row, strict=True))) for item in parsed]

    def copy_alone() -> None:
        with connection.cursor() as cursor, cursor.copy(usage.copy_into("usage_event")) as copy:
            copy.set_types(list(TYPES.values()))
            for item in parsed:
                copy.write_row(item.row)

    ways: dict[str, Callable[[], object]] = {
        "COPY": copy_alone,
        "the writer: COPY, hours, position": lambda: usage.write(
            parsed=parsed, before=usage.position(), after=usage.Position("e", "r", "1-0")
        ),
        "bulk_create": lambda: UsageEvent.objects.bulk_create(rows, batch_size=1000),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(5):
        for name, work in ways.items():
            with transaction.atomic():
                found[name].append(cpu_of(work))
                transaction.set_rollback(True)
    took = {name: median(wall for wall, _ in times) for name, times in found.items()}
    own = {name: median(cpu for _, cpu in times) for name, times in found.items()}
    for name in ways:
        each_us = own[name] / RECORDS * 1e6
        figure = f"{took[name] * 1000:.0f} ms, {each_us:.1f} us CPU"
        table.add(f"{RECORDS:,} records by {name}", figure)
    copy, writer, bulk = ways
    times = took[bulk] / took[copy]
    table.add("bulk_create by COPY, time (7 wanted)", f"{times:.1f}", holds=times >= 7)
    table.add("bulk_create by the whole writer, time", f"{took[bulk] / took[writer]:.1f}")
    cheaper = own[bulk] / own[writer]
    table.add("the same, client's CPU (7 wanted)", f"{cheaper:.1f}", holds=cheaper >= 7)
    table.add("reading a record of the stream", f"{parse_s / RECORDS * 1e6:.1f} us CPU")


def readable(table: Table) -> None:
    """Append 200 records a second to the stream and see when each can be read."""
    from django.db import connection

    from quotas import stores
    from quotas.models import UsageEvent
    from quotas.usage_writer import UsageWriter
    from tests.quotas.helpers import append, record

    stop, valkey = threading.Event(), stores.connect()
    writer = threading.Thread(target=UsageWriter().run, args=(stop,))
    writer.start()
    waits = []
    try:
        for n in range(20):
            name, began = f"seen_{n}", time.monotonic()
            append(valkey, *(record(10**6 * (n + 1) + k) for k in range(99)))
            append(valkey, record(n, request_id=name))
            while not UsageEvent.objects.filter(request_id=name).exists():
                time.sleep(0.01)
            waits.append(time.monotonic() - began)
            time.sleep(max(0.0, 0.5 - waits[-1]))
    finally:
        stop.set()
        writer.join()
        connection.close()
    table.add(
        "readable after its end, median and longest (2 s)",
        f"{median(waits) * 1000:.0f} and {max(waits) * 1000:.0f} ms", holds=max(waits) <= 2,
    )  # fmt: skip


def export() -> None:
    """Stream a million requests as CSV in this process; print seconds and memory as JSON."""
    from itertools import islice

    from quotas import exports, reports
    from tests.quotas.test_usage_speed import MONTH

    def most_mib() -> float:
        # Not getrusage: after a fork that counts the parent's memory.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    header, rows = exports.request_table(islice(reports.requests(MONTH), EXPORTED))
    idle_mib, began = most_mib(), time.monotonic()
    size = sum(len(line) for line in exports.csv_lines(header, rows))
    print(json.dumps([time.monotonic() - began, idle_mib, most_mib(), size]))


def exporting(table: Table, folder: Path) -> None:
    """Export in a process of its own, whose memory is then the export's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.usage", "export", str(folder)],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    took, idle, most, size = json.loads(done.stdout.splitlines()[-1])
    table.add(
        "export of 1,000,000 requests: memory it took (100 MB)",
        f"{most - idle:.0f} MiB over {idle:.0f}", holds=most - idle < 95,
    )  # fmt: skip
    table.add("its time and size", f"{took:.0f} s, {size / 1e6:.0f} MB")


def measure(folder: Path) -> int:
    """Print the table."""
    from quotas.models import UsageEvent
    from tests.quotas import volume

    table, rows = Table(), UsageEvent.objects.count()
    table.add("requests, of which in thirty days", f"{rows:,}")
    volume.people()
    chart(table)
    pages(table)
    writing(table)
    readable(table)
    exporting(table, folder)
    return 1 if table.missed else 0


def main(what: str, folder: Path, rows: int) -> int:
    """Do what is asked."""
    if what == "export":  # the stores run already
        import django

        django.setup()
        export()
        return 0
    with installation(folder.resolve()):
        if what == "rows":
            fill(rows)
            return 0
        return measure(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else ROWS))
