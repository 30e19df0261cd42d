"""Usage and the audit trail: to look at, never to change."""

from __future__ import annotations

import datetime as dt
from typing import Any, ClassVar, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from pghistory.admin import EventsAdmin
from pghistory.admin.core import EventsChangeList
from pghistory.core import event_models
from pghistory.models import Events
from unfold.contrib.filters.admin import RangeDateTimeFilter

from quotas.admin.base import ReadOnlyAdmin, display
from quotas.models import ServiceClass, UsageEvent, UsageHour, User

MOST_COUNTED = 10_000
OUTCOMES = (
    "served", "failed", "aborted", "interrupted", "evicted_timed_out", "evicted_no_replica",
    "evicted_client_gone", "evicted_revoked", "evicted_shutting_down",
)  # fmt: skip


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than a person would leaf: a million rows cost what ten thousand do."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or the most that are counted."""
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by()[:MOST_COUNTED].count()


class ClassFilter(admin.SimpleListFilter):
    """The two classes, without asking a million rows which there are."""

    title = "class of service"
    parameter_name = "service_class"
    values: ClassVar[tuple[str, ...]] = tuple(ServiceClass.values)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, value.replace("_", " ")) for value in self.values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset.filter(**{self.parameter_name: value}) if value else queryset


class OutcomeFilter(ClassFilter):
    """How requests end."""

    title = "outcome"
    parameter_name = "outcome"
    values = OUTCOMES


NEWEST = 500  # changes of the audit trail that are shown without a filter
# Columns that change with every edit and say nothing by themselves.
_DULL = frozenset({"edition", "set_at"})


@admin.register(UsageEvent)
class UsageEventAdmin(ReadOnlyAdmin[UsageEvent]):
    """Single requests. Rows are written by the usage writer alone and hold no prompt text."""

    list_display = [
        "request_id", "arrived_at", "key_id", "model", "service_class", "outcome", "status",
        "prompt_tokens", "completion_tokens", "queue_wait_ms", "ttft_ms", "duration_ms",
    ]  # fmt: skip
    list_filter = [
        ClassFilter, OutcomeFilter, ("arrived_at", RangeDateTimeFilter), "estimated",
    ]  # fmt: skip
    paginator = CappedPaginator
    list_filter_submit = True
    search_fields = ["request_id__exact", "key_id__exact", "batch_id__exact"]
    search_help_text = "A whole request id, key id or batch id, as it is written."
    ordering = ["-arrived_at"]
    # Counting ten million rows for a page number would cost more than the page.
    show_full_result_count = False


@admin.register(UsageHour)
class UsageHourAdmin(ReadOnlyAdmin[UsageHour]):
    """Sums by hour, which every chart and report reads."""

    list_display = [
        "hour", "key_id", "model", "service_class", "requests", "failed", "prompt_tokens",
        "completion_tokens",
    ]  # fmt: skip
    list_filter = [ClassFilter, ("hour", RangeDateTimeFilter)]
    paginator = CappedPaginator
    list_filter_submit = True
    search_fields = ["key_id__exact", "batch_id__exact"]
    ordering = ["-hour"]


class AuditList(EventsChangeList):
    """A page of the trail, with the names of those who made its changes in one query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        editors = {number for event in self.result_list if (number := _editor(event))}
        names = dict(User.objects.filter(pk__in=editors).values_list("pk", "username"))
        for event in self.result_list:
            number = _editor(event)
            event.name = names.get(number, f"former user {number}") if number else ""


class AuditAdmin(ReadOnlyAdmin[Events], EventsAdmin):
    """Who changed what, when, from what to what; named in settings as PGHISTORY_ADMIN_CLASS."""

    search_fields = ["pgh_obj_id"]
    search_help_text = (
        "The number of the row that was changed. Without a filter the list holds the newest "
        f"{NEWEST:,} changes at least; search or filter for older ones."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset(request)  # type: ignore[no-untyped-call]
        if set(request.GET) - {"p", "o"}:
            return found
        since = _newest_since()
        return found if since is None else found.filter(pgh_created_at__gte=since)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return AuditList

    def get_list_display(self, request: HttpRequest) -> Any:
        return ["when", "what", "change", "who", "old_and_new"]

    @display(description="when", ordering="pgh_created_at")
    def when(self, event: Any) -> Any:
        return event.pgh_created_at

    @display(description="what")
    def what(self, event: Any) -> str:
        name = str(event.pgh_obj_model).removeprefix("quotas.")
        shown = event.pgh_data.get("name") or event.pgh_data.get("username") or ""
        return f"{name} {event.pgh_obj_id} {shown}".strip()

    @display(
        description="change", label={"insert": "success", "update": "info", "delete": "danger"}
    )
    def change(self, event: Any) -> str:
        return str(event.pgh_label)

    @display(description="who")
    def who(self, event: Any) -> str:
        context = _context(event)
        return event.name or str(context.get("command") or "command or shell")

    @display(description="old and new")
    def old_and_new(self, event: Any) -> str:
        if event.pgh_label == "insert":
            return "made"
        changed = event.pgh_diff or {}
        shown = {name: values for name, values in changed.items() if name not in _DULL}
        return "; ".join(f"{name}: {old} → {new}" for name, (old, new) in shown.items())


def _newest_since() -> dt.datetime | None:
    """Return a time after which there are `NEWEST` changes at least; None: there are fewer.

    The trail compares each change with the one before it, so it is read no further than people
    leaf through it.
    """
    tables = [model._meta.db_table for model in event_models()]
    newest = " UNION ALL ".join(
        f'(SELECT pgh_created_at FROM "{table}" ORDER BY pgh_id DESC OFFSET {NEWEST - 1} LIMIT 1)'  # noqa: S608
        for table in tables
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT max(pgh_created_at) FROM ({newest}) AS found")  # noqa: S608
        since: dt.datetime | None = cursor.fetchone()[0]
    return since


def _context(event: Any) -> dict[str, Any]:
    return event.pgh_context or {}


def _editor(event: Any) -> int:
    return int(_context(event).get("user") or 0)
