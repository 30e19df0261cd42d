"""Reports of usage: one query behind the page, the CSV and the command.

Everything is read from the hourly rollup, so a report costs the same whether its month holds ten
thousand requests or ten million. Days are those of the reporting time zone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import BigIntegerField, F, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, TruncDate

from quotas.models import ApiKey, Group, UsageEvent, UsageHour, User
from quotas.snapshots import windows

# What a report can be split by -> the column of the rollup.
DIMENSIONS = {
    "day": "day",
    "model": "model",
    "key": "key_id",
    "user": "user_id",
    "group": "group_id",
    "class": "service_class",
    "batch": "batch_id",
    "end_user": "end_user",
}
SUMS = (
    "requests", "served", "failed", "aborted", "evicted", "estimated", "prompt_tokens",
    "cached_tokens", "completion_tokens", "reasoning_tokens", "queue_wait_ms", "ttft_ms",
    "ttft_count", "duration_ms",
)  # fmt: skip
EXPORT_CHUNK = 2_000  # rows held in memory while streaming an export


@dataclass(frozen=True, slots=True)
class Period:
    """Local days from `first` to `last`, both inside."""

    first: dt.date
    last: dt.date

    @classmethod
    def last_days(cls, days: int, *, now: dt.datetime) -> Self:
        """Return today and the days before it, `days` in all."""
        today = windows.local_date(now, settings.TIME_ZONE)
        return cls(today - dt.timedelta(days=days - 1), today)

    @property
    def start(self) -> dt.datetime:
        """Return the first instant inside."""
        return windows.start_of(self.first, settings.TIME_ZONE)

    @property
    def end(self) -> dt.datetime:
        """Return the first instant after it."""
        return windows.start_of(self.last + dt.timedelta(days=1), settings.TIME_ZONE)


@dataclass(frozen=True, slots=True)
class Only:
    """Whose usage; what is None is not asked. Pages fill in what the viewer may see."""

    user_id: int | None = None
    group_id: int | None = None
    key_id: str | None = None
    model: str | None = None
    service_class: str | None = None
    batch_id: str | None = None
    end_user: str | None = None

    def lookups(self) -> dict[str, Any]:
        """Return the filters of the query set."""
        named = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in named if value is not None}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a report; cached and reasoning are parts and never added to the total."""

    labels: dict[str, str]  # dimension -> what a person reads
    values: dict[str, Any]  # dimension -> what a link or a chart needs
    requests: int
    served: int
    failed: int
    aborted: int
    evicted: int
    estimated: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    queue_wait_ms: int
    ttft_ms: int
    ttft_count: int
    duration_ms: int

    @property
    def tokens(self) -> int:
        """Return prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def mean_ttft_ms(self) -> int | None:
        """Return the mean time to the first token; None where nothing was streamed."""
        return self.ttft_ms // self.ttft_count if self.ttft_count else None

    @property
    def mean_queue_wait_ms(self) -> int | None:
        """Return the mean wait for a slot."""
        return self.queue_wait_ms // self.requests if self.requests else None


def query(by: Sequence[str], period: Period, only: Only) -> QuerySet[UsageHour, dict[str, Any]]:
    """Return the one query of a report, for the page, the CSV and the command alike."""
    unknown = set(by) - set(DIMENSIONS)
    if unknown or not by:
        raise ValueError(f"A report is by {', '.join(DIMENSIONS)}; not by {sorted(unknown)}.")
    columns = [DIMENSIONS[name] for name in by]
    hours = UsageHour.objects.filter(hour__gte=period.start, hour__lt=period.end, **only.lookups())
    if "batch" in by:
        hours = hours.exclude(batch_id="")
    if "day" in by:
        hours = hours.annotate(day=TruncDate("hour", tzinfo=ZoneInfo(settings.TIME_ZONE)))
    zero = Value(0, output_field=BigIntegerField())
    sums = {
        f"sum_{name}": Coalesce(Sum(name), zero, output_field=BigIntegerField()) for name in SUMS
    }
    order = [F(column).asc() for column in columns if column == "day"] or [
        (F("sum_prompt_tokens") + F("sum_completion_tokens")).desc()
    ]
    others = [F(column).asc(nulls_last=True) for column in columns if column != "day"]
    grouped: QuerySet[UsageHour, dict[str, Any]] = hours.values(*columns).annotate(**sums)
    return grouped.order_by(*order, *others)


def lines(by: Sequence[str], period: Period, only: Only = Only()) -> list[Line]:
    """Return a report: one query for the sums, one for each kind of name it shows."""
    found = list(query(by, period, only))
    names = {name: _names(name, found) for name in by}
    return [_line(by, raw, names) for raw in found]


def total(period: Period, only: Only = Only()) -> Line:
    """Return the sums of the whole period as one line."""
    hours = UsageHour.objects.filter(hour__gte=period.start, hour__lt=period.end, **only.lookups())
    raw = hours.aggregate(**{f"sum_{name}": Sum(name) for name in SUMS})
    return _line((), {name: value or 0 for name, value in raw.items()}, {})


def _line(by: Sequence[str], raw: dict[str, Any], names: dict[str, dict[Any, str]]) -> Line:
    values = {name: raw[DIMENSIONS[name]] for name in by}
    labels = {name: names[name].get(value, _unnamed(name, value)) for name, value in values.items()}
    return Line(labels=labels, values=values, **{name: raw[f"sum_{name}"] for name in SUMS})


def _unnamed(dimension: str, value: Any) -> str:
    """Name what is not, or no longer, in the books: the sums of people who left stay."""
    if value is None or value == "":
        return "none"
    if dimension in {"user", "group"}:
        return f"former {dimension} {value}"
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _names(dimension: str, found: Iterable[dict[str, Any]]) -> dict[Any, str]:
    wanted = {raw[DIMENSIONS[dimension]] for raw in found} - {None, ""}
    if dimension == "user":
        return dict(User.objects.filter(pk__in=wanted).values_list("pk", "username"))
    if dimension == "group":
        return dict(Group.objects.filter(pk__in=wanted).values_list("pk", "name"))
    if dimension == "key":
        keys = ApiKey.objects.filter(public_id__in=wanted)
        return {public_id: f"{name} ({masked})" for public_id, name, masked in keys.values_list(
            "public_id", "name", "masked"
        )}  # fmt: skip
    return {}


def requests(period: Period, only: Only = Only()) -> Iterator[UsageEvent]:
    """Stream single requests, oldest first, in flat memory however many there are."""
    rows = UsageEvent.objects.filter(
        arrived_at__gte=period.start, arrived_at__lt=period.end, **only.lookups()
    )
    return rows.order_by("arrived_at").iterator(chunk_size=EXPORT_CHUNK)
