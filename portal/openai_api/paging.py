"""Lists as the client pages them: `after` is the id of the last item it has seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from rest_framework.request import Request

from portal.openai_api.errors import BadRequest, NotFound

M = TypeVar("M", bound=Model)


def _limit(request: Request, default: int, most: int) -> int:
    raw = request.query_params.get("limit", str(default))
    if not (raw.isascii() and raw.isdigit()) or not 1 <= int(raw[:9]) <= most:
        raise BadRequest(f"limit must be a whole number from 1 to {most}.", param="limit")
    return int(raw)


def page(
    request: Request,
    rows: QuerySet[M],
    shape: Callable[[M], dict[str, Any]],
    *,
    default: int,
    most: int,
) -> dict[str, Any]:
    """Return one page of `rows`, newest first unless asked otherwise.

    Rows need `public_id`; their primary key grows with time, so a page never shifts while new
    rows arrive. `has_more` is always there: without it the client asks for ever.
    """
    limit = _limit(request, default, most)
    order = request.query_params.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise BadRequest("order must be asc or desc.", param="order")
    after = request.query_params.get("after", "")
    if after:
        seen = rows.filter(public_id=after[:200].replace("\x00", "")).values_list("pk").first()
        if seen is None:
            raise NotFound(f"No item {after[:80]!r} to go on after.")
        rows = rows.filter(pk__gt=seen[0]) if order == "asc" else rows.filter(pk__lt=seen[0])
    found = list(rows.order_by("pk" if order == "asc" else "-pk")[: limit + 1])
    data = [shape(row) for row in found[:limit]]
    return {
        "object": "list",
        "data": data,
        "has_more": len(found) > limit,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
