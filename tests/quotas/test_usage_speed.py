"""What keeps the usage database quick, as ratios in one run and as plans; never as milliseconds.

`pytest tests/quotas/test_usage_speed.py -m long` does the same on ten million rows.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable

import pytest
from django.db import connection
from django.db.models import Sum
from django.db.models.functions import TruncDate

from quotas import reports
from quotas.models import UsageEvent
from quotas.reports import Only, Period
from quotas.services import usage
from quotas.usage_rows import COLUMNS, parse
from tests.quotas import volume
from tests.quotas.helpers import record

pytestmark = pytest.mark.django_db

MONTH = Period(dt.date(2026, 10, 31), dt.date(2026, 11, 29))
BUSIEST = Only(user_id=1)


def raw_chart():
    """Return the same chart from single requests."""
    rows = UsageEvent.objects.filter(
        arrived_at__gte=MONTH.start, arrived_at__lt=MONTH.end, user_id=1
    )
    days = rows.annotate(day=TruncDate("arrived_at")).order_by().values("day")
    return days.annotate(prompt=Sum("prompt_tokens"), completion=Sum("completion_tokens"))


def measured(query) -> tuple[float, int, str]:
    """Return milliseconds, blocks read and the plan of a query."""
    text = query.explain(format="json", analyze=True, buffers=True)
    plan = json.loads(text)[0]
    blocks = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    return plan["Execution Time"], blocks, text


def compare() -> None:
    """Hold the chart from the rollup against the one from single requests."""
    measured(reports.query(["day"], MONTH, BUSIEST))
    rollup_ms, rollup_blocks, plan = measured(reports.query(["day"], MONTH, BUSIEST))
    measured(raw_chart())
    raw_ms, raw_blocks, _ = measured(raw_chart())
    print(f"rollup {rollup_ms:.1f} ms {rollup_blocks} blocks, raw {raw_ms:.1f} ms {raw_blocks}")

    report = reports.lines(["day"], MONTH, BUSIEST)
    from_rollup = {line.labels["day"]: line.tokens for line in report}
    from_rows = {str(row["day"]): row["prompt"] + row["completion"] for row in raw_chart()}
    assert from_rollup == from_rows
    assert "usage_event" not in plan
    assert '"Seq Scan"' not in plan
    assert raw_ms >= 10 * rollup_ms or raw_blocks >= 10 * rollup_blocks


def test_a_month_s_chart_reads_the_rollup_and_no_request() -> None:
    """On 200,000 rows the busiest user's chart is at least twenty times cheaper than raw."""
    volume.fill(200_000)
    compare()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_month_s_chart_on_ten_million_rows() -> None:
    """The same on ten million rows."""
    volume.fill(10_000_000)
    compare()


def test_copy_is_much_cheaper_than_row_by_row_inserts() -> None:
    """10,000 records with rollup and position cost a fraction of Django's bulk insert."""
    parsed = [parse(record(n).to_json()) for n in range(10_000)]
    start = time.perf_counter()
    usage.write(parsed=parsed, before=usage.position(), after=usage.Position("e", "r", "1-0"))
    copied = time.perf_counter() - start
    start = time.perf_counter()
    rows = [
        UsageEvent(**dict(zip(COLUMNS, item.row, strict=True)) | {"request_id": f"b{n}"})
        for n, item in enumerate(parsed)
    ]
    UsageEvent.objects.bulk_create(rows, batch_size=1000)
    inserted = time.perf_counter() - start
    print(f"copy {copied:.3f} s, bulk_create {inserted:.3f} s")

    assert inserted > 3 * copied  # about seven on a quiet machine; three is far from noise


def test_an_export_keeps_flat_memory(django_assert_num_queries: Callable) -> None:
    """Requests are streamed through a cursor of the server, a few thousand at a time."""
    volume.fill(20_000)
    rows = reports.requests(MONTH)
    first = next(rows)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_cursors WHERE is_holdable OR name LIKE '_django%'")
        assert cursor.fetchone()[0] == 1

    assert first.arrived_at <= next(rows).arrived_at
