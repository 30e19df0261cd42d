"""Usage: charts, ranges, history, downloads."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from portal import charts
from portal.usage import history, series
from quotas.models import RejectedMinute, UsageEvent, UsageHour
from quotas.reports import Only
from quotas.services import keys
from tests.portal.usage import event, hour

NOW = dt.datetime(2026, 11, 26, 14, 32, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("most", "top", "step"),
    [(0, 3, 1), (3, 3, 1), (7, 7.5, 2.5), (82_000, 100_000, 50_000), (260_000, 300_000, 100_000),
     (1, 1.0, 0.5)],
)  # fmt: skip
def test_a_scale_is_round_and_holds_the_largest_value(most: float, top: float, step: float) -> None:
    """
    The axis ends on a round number at or above the largest value.
    """
    assert charts.scale(most) == pytest.approx((top, step))


def test_stacked_bars_add_up() -> None:
    """
    A column's pieces stand on one another, and the largest reaches its value on the scale.
    """
    chart = charts.stacked(
        [charts.Column("a", (100.0, 200.0), True), charts.Column("b", (0.0, 0.0))]
    )
    low, high = chart.bars

    assert len(chart.bars) == 2
    assert high.y + high.height <= low.y
    assert high.y == pytest.approx(charts.TOP, abs=1)
    assert [label.label for label in chart.labels] == ["a"]


def test_points_past_the_slots_are_marked() -> None:
    """
    More people than slots are drawn on shaded ground, with a dashed line leading there.
    """
    chart = charts.line([charts.Measured(n, 60 / n, 50 / n, 70 / n) for n in (1, 2, 4, 8, 16)], 8)

    assert [dot.beyond for dot in chart.dots] == [False, False, False, False, True]
    assert chart.beyond_x == 80


@pytest.mark.parametrize(
    ("used", "limit", "width"), [(0, 10, 0), (5, 10, 50), (20, 10, 100), (1, 0, 100)]
)
def test_a_gauge_is_full_at_its_limit(used: int, limit: int, width: float) -> None:
    """
    A gauge never runs over, and a limit of nothing is full.
    """
    assert charts.gauge_width(used, limit) == width


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("2026-11-02", "2026-11-01"),
        ("x", "2026-11-01"),
        ("2020-01-01", "2026-01-01"),
        ("", "2026-01-01"),
    ],
)
def test_ranges_that_cannot_be_shown_are_refused(first: str, last: str) -> None:
    """
    A range must be two days in order, a year at most.
    """
    with pytest.raises(series.WrongRange):
        series.chosen("custom", first, last, NOW)


@pytest.mark.django_db
def test_a_day_with_nothing_is_a_row_of_zeros(alice: Any, settings: Any) -> None:
    """
    Every day of the range has a row, and each hour counts on its local day.
    """
    settings.TIME_ZONE = "Europe/Berlin"
    UsageHour.objects.create(
        **_fields(hour(alice.pk, dt.datetime(2026, 11, 24, 23, tzinfo=dt.UTC)))
    )
    wanted = series.chosen("7d", "", "", NOW)
    found = series.picture(Only(user_id=alice.pk), wanted, "class", NOW)

    assert [row.sums["requests"] for row in found.rows] == [0, 0, 0, 0, 0, 10, 0]
    assert found.total.tokens == 1200


def _fields(row: UsageHour) -> dict[str, Any]:
    return {f.attname: getattr(row, f.attname) for f in row._meta.fields if f.attname != "id"}


@pytest.mark.django_db
def test_many_models_become_four_and_the_rest(alice: Any) -> None:
    """
    A chart has five series at most; the smallest are counted together and said to be.
    """
    start = dt.datetime(2026, 11, 26, 9, tzinfo=dt.UTC)
    UsageHour.objects.bulk_create(
        [hour(alice.pk, start, model=f"m{n}", prompt_tokens=1000 * n) for n in range(1, 8)]
    )
    found = series.picture(Only(user_id=alice.pk), series.chosen("7d", "", "", NOW), "model", NOW)

    assert [one.label for one in found.series] == ["m7", "m6", "m5", "m4", "3 others"]
    assert sum(one.tokens for one in found.series) == found.total.tokens


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
def test_the_page_the_csv_and_the_json_say_the_same(alice: Any, as_user: Any) -> None:
    """
    Sums of the page and of both downloads are equal.
    """
    from django.utils import timezone

    start = timezone.now().replace(minute=0, second=0, microsecond=0)
    UsageHour.objects.bulk_create([hour(alice.pk, start), hour(alice.pk, start, model="other")])
    browser = as_user(alice)

    assert "2,000" in browser.get("/usage/").content.decode()
    rows = browser.get("/usage/usage.csv").getvalue().decode().splitlines()
    assert (
        sum(int(row.split(",")[rows[0].split(",").index("prompt_tokens")]) for row in rows[1:])
        == 2000
    )
    assert (
        sum(row["prompt_tokens"] for row in json.loads(browser.get("/usage/usage.json").getvalue()))
        == 2000
    )


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
def test_history_pages_hold_every_own_request_once(alice: Any, bob: Any, as_user: Any) -> None:
    """
    Following "older" walks all own requests once, and no page shows another person's.
    """
    UsageEvent.objects.bulk_create([event(alice.pk, n) for n in range(120)] + [event(bob.pk, 500)])
    seen: list[str] = []
    after = ""
    while True:
        page = history.page(alice.pk, {}, after)
        seen += [row.request_id for row in page.rows]
        after = page.after
        if not after:
            break

    assert seen == [f"req_{n}" for n in range(120)]
    assert "req_500" not in as_user(alice).get("/usage/requests/").content.decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
@pytest.mark.parametrize("after", ["x", "....", "é", "AAAA", "bm90IGEgZGF0ZSB4"])
def test_a_broken_cursor_starts_anew(alice: Any, as_user: Any, after: str) -> None:
    """
    A cursor that was cut shows the newest requests and never fails.
    """
    UsageEvent.objects.bulk_create([event(alice.pk, 1)])

    assert "req_1" in as_user(alice).get("/usage/requests/", {"after": after}).content.decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
def test_refusals_are_counted_and_explained(alice: Any, as_user: Any) -> None:
    """
    What was turned away at the door is shown by code, with a link to its meaning.
    """
    from django.utils import timezone

    key = keys.issue(owner=alice, name="n", service_class="interactive").key
    RejectedMinute.objects.create(
        minute=timezone.now(), key_id=key.public_id, code="queue_full_key", count=7
    )

    assert "/docs/errors/#queue_full_key" in as_user(alice).get("/usage/").content.decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
@pytest.mark.parametrize("address", ["/usage/", "/usage/requests/", "/", "/status/", "/models/"])
def test_pages_ask_as_often_at_ten_times_the_data(
    alice: Any, as_user: Any, address: str, django_assert_max_num_queries: Any
) -> None:
    """
    Pages stay at fifteen queries however much was used.
    """
    start = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    UsageHour.objects.bulk_create(
        [hour(alice.pk, start - dt.timedelta(hours=n)) for n in range(500)]
    )
    UsageEvent.objects.bulk_create([event(alice.pk, n) for n in range(200)])
    for number in range(10):
        keys.issue(owner=alice, name=f"k{number}", service_class="interactive")
    browser = as_user(alice)

    with django_assert_max_num_queries(15):
        assert browser.get(address).status_code == 200
