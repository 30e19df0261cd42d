"""Reports: the same numbers on the page, in the CSV and from the command."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Callable

import pytest
from django.core.management import call_command
from django.db import connection

from quotas import exports, reports
from quotas.models import User
from quotas.reports import Only, Period
from quotas.services import usage
from quotas.usage_rows import parse
from tests.quotas.helpers import ARRIVED, record

pytestmark = pytest.mark.django_db

NOVEMBER = Period(dt.date(2026, 11, 1), dt.date(2026, 11, 30))


@pytest.fixture
def write() -> Callable[..., None]:
    """Put records into the books."""
    numbers = iter(range(1, 10**6))

    def put(*records) -> None:
        before = usage.position()
        after = usage.Position("e", "r", f"{next(numbers)}-0")
        usage.write(parsed=[parse(r.to_json()) for r in records], before=before, after=after)

    return put


def test_parts_are_never_added_to_the_total(write: Callable) -> None:
    """Prompt 1000 of which 900 cached, completion 300 of which 200 reasoning: total 1300."""
    write(
        record(
            1, prompt_tokens=1000, cached_tokens=900, completion_tokens=300, reasoning_tokens=200
        )
    )

    line = reports.total(NOVEMBER)

    assert (line.tokens, line.cached_tokens, line.reasoning_tokens) == (1300, 900, 200)


@pytest.mark.parametrize("by", [name for name in reports.DIMENSIONS if name != "batch"])
def test_every_way_to_split_gives_the_same_total(by: str, write: Callable) -> None:
    """Whatever a report is split by, its lines sum to the total of the period."""
    write(*(record(n, user_id=str(n % 3), model=f"m{n % 2}") for n in range(1, 30)))

    found = reports.lines([by], NOVEMBER)

    assert sum(line.tokens for line in found) == reports.total(NOVEMBER).tokens == 29 * 120


def test_only_work_of_batches_is_listed_by_batch(write: Callable) -> None:
    """Requests outside of batches are no batch called nothing."""
    write(record(1), record(2, batch_id="batch_7"), record(3, batch_id="batch_7"))

    assert [
        (line.labels["batch"], line.requests) for line in reports.lines(["batch"], NOVEMBER)
    ] == [("batch_7", 2)]


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("Europe/Berlin", {"2026-10-24": 1, "2026-10-25": 25, "2026-10-26": 1}),
        ("Asia/Tokyo", {"2026-10-24": 1, "2026-10-25": 24, "2026-10-26": 2}),
    ],
)
def test_a_day_is_one_of_the_reporting_zone(
    zone: str, days: dict[str, int], write: Callable, settings
) -> None:
    """One request in each of 27 hours: the day clocks go back holds 25 of them in Berlin."""
    settings.TIME_ZONE = zone
    midnight = dt.datetime.fromisoformat("2026-10-25T00:00:00").replace(
        tzinfo=reports.ZoneInfo(zone)
    ).astimezone(dt.UTC)  # fmt: skip
    hours = [midnight + dt.timedelta(hours=n, minutes=30) for n in range(-1, 26)]
    write(*(record(n, arrived_at=at.isoformat()) for n, at in enumerate(hours)))
    period = Period(dt.date(2026, 10, 24), dt.date(2026, 10, 26))

    found = {line.labels["day"]: line.requests for line in reports.lines(["day"], period)}

    assert found == days
    one_day = Period(dt.date(2026, 10, 25), dt.date(2026, 10, 25))
    assert reports.total(one_day).requests == days["2026-10-25"]
    assert len(list(reports.requests(one_day))) == days["2026-10-25"]


def test_people_see_names_and_the_sums_of_those_who_left_stay(write: Callable, alice: User) -> None:
    """Lines are labelled by name where there is one."""
    write(record(1, user_id=str(alice.pk)), record(2, user_id="999999"))

    labels = {line.labels["user"] for line in reports.lines(["user"], NOVEMBER)}

    assert labels == {"alice", "former user 999999"}


def test_page_csv_and_command_say_the_same(write: Callable, alice: User) -> None:
    """The command's JSON and CSV are the page's lines."""
    write(record(1, user_id=str(alice.pk)), record(2, user_id=str(alice.pk), model="other"))
    arguments = {"by": ["model"], "first": NOVEMBER.first, "last": NOVEMBER.last}
    texts = {}
    for form in ("json", "csv"):
        out = io.StringIO()
        call_command("usage", stdout=out, user="alice", **arguments, **{form: True})
        texts[form] = out.getvalue()

    page = {line.labels["model"]: line.tokens for line in reports.lines(["model"], NOVEMBER)}
    as_json = {item["model"]: item["tokens"] for item in json.loads(texts["json"])["usage"]}
    as_csv = {row["model"]: int(row["tokens"]) for row in csv.DictReader(io.StringIO(texts["csv"]))}
    assert page == as_json == as_csv == {"tiny": 120, "other": 120}


def test_a_name_cannot_become_a_formula(write: Callable) -> None:
    """Cells a spreadsheet would run are quoted; numbers stay numbers."""
    write(record(1, model='=HYPERLINK("http://x")', end_user="@sum"))

    header, rows = exports.request_table(reports.requests(NOVEMBER))
    row = next(iter(csv.DictReader(exports.csv_lines(header, rows))))

    assert row["model"] == '\'=HYPERLINK("http://x")'
    assert row["end_user"] == "'@sum"
    assert row["prompt_tokens"] == "100"


def test_a_report_never_reads_single_requests(write: Callable, django_assert_num_queries) -> None:
    """The 30-day chart of a user reads the rollup by its index, and no row of usage_event."""
    write(*(record(n, user_id=str(n % 50)) for n in range(1, 500)))
    only = Only(user_id=7)
    with django_assert_num_queries(1):
        reports.lines(["day"], NOVEMBER, only)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE usage_hour")
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = reports.query(["day"], NOVEMBER, only).explain()

    assert "usage_event" not in plan
    assert "Index" in plan


def test_a_month_that_is_empty_is_an_empty_report() -> None:
    """No usage is zeros and no lines, not an error."""
    assert reports.lines(["day", "class"], NOVEMBER) == []
    assert reports.total(NOVEMBER).tokens == 0
    assert "".join(exports.json_lines(["a"], [])) == "[]"


def test_the_period_holds_today() -> None:
    """The last 30 days end with today's local date."""
    period = Period.last_days(30, now=ARRIVED)

    assert (period.last, (period.last - period.first).days) == (ARRIVED.date(), 29)
