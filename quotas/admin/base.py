"""What all pages of the books share: writes take the books' lock and are published."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold import decorators
from unfold.admin import ModelAdmin

from quotas.services import books

ROWS = 25  # of one page: the theme needs some 5 ms to draw each

M = TypeVar("M", bound=Model)
F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin as _Base
else:

    class _Base(ModelAdmin):
        def __class_getitem__(cls, _model: Any) -> Any:
            return cls


def display(**options: Any) -> Callable[[F], F]:
    """Describe a column (unfold's decorator, with a type)."""
    return cast("Callable[[F], F]", decorators.display(**options))


def action(**options: Any) -> Callable[[F], F]:
    """Describe an action on chosen rows (unfold's decorator, with a type)."""
    return cast("Callable[[F], F]", decorators.action(**options))


class BooksAdmin(_Base[M]):
    """Saves and deletes inside `books.writing()`; pages, inline edits and actions alike."""

    list_per_page = ROWS
    show_full_result_count = False

    def save_model(self, request: HttpRequest, obj: M, form: Any, change: bool) -> None:
        with books.writing():
            super().save_model(request, obj, form, change)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        with books.writing():
            super().save_related(request, form, formsets, change)

    def delete_model(self, request: HttpRequest, obj: M) -> None:
        with books.writing():
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[M]) -> None:
        with books.writing():
            super().delete_queryset(request, queryset)


class ReadOnlyAdmin(_Base[M]):
    """Shows and never writes."""

    list_per_page = ROWS
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False
