"""Shows the manual; snippets hold this installation's address and a model of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from portal.charts import Tick
from portal.docs import errors, guides, pages, slope
from portal.keys import snippets
from portal.keys.views import model_that_is_up
from portal.status import shapes
from quotas import limits as limit_specs
from quotas.models import Card, Pool
from quotas.services import limits
from quotas.snapshots import keyformat


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Show the contents, or what a search found."""
    query = request.GET.get("q", "")[:100]
    context = {
        "section": "docs",
        "pages": pages.PAGES,
        "query": query,
        "hits": pages.search(_texts(), query) if query else [],
    }
    return render(request, "docs/index.html", context)


@require_safe
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one page."""
    found = pages.BY_SLUG.get(slug)
    if found is None:
        raise Http404
    place = pages.PAGES.index(found)
    context = {
        **_facts(),
        "layout": "docs/base.html",
        "section": "docs",
        "page": found,
        "pages": pages.PAGES,
        "following": pages.PAGES[place + 1] if place + 1 < len(pages.PAGES) else None,
    }
    return render(request, found.template, context)


def _facts() -> dict[str, Any]:
    """Return what the pages fill in: address, model, limits, cards."""
    model = model_that_is_up() or "MODEL"
    return {
        "base_url": settings.PUBLIC_URL,
        "model": model,
        "guides": guides.of(settings.PUBLIC_URL, model),
        "env_exports": guides.exports(settings.PUBLIC_URL),
        "errors": errors.ERRORS,
        "env_lines": snippets.environment(settings.PUBLIC_URL, "fw_int_…"),
        "limit_table": _limit_table(),
        "time_zone": settings.TIME_ZONE,
        "key_pattern": keyformat.PATTERN,
        "handicap_min": int(shapes.HANDICAP_S // 60),
        "cards": Card.objects.all(),
        "pools": Pool.objects.all(),
        **_ordering(),
    }


def _ordering() -> dict[str, Any]:
    """Return the pictures of the ordering page."""
    handicap_s = shapes.HANDICAP_S
    return {
        "frames": slope.frames(handicap_s),
        "slope": {
            "chats": slope.chats(handicap_s),
            "start_x": slope.x_at(0),
            "level_x": slope.x_at(10),
            "end_x": slope.x_at(11.2),
            "end_y": slope.y_at(72, handicap_s),
            "labels": [Tick(slope.x_at(m), f"14:{m:02}") for m in (5, 10)],
        },
    }


def _limit_table() -> list[tuple[limit_specs.LimitSpec, str, int | None, int | None]]:
    """Return each limit that is enforced, with what holds for everyone in both classes."""
    by_class = {
        name: {(e.spec.name, e.per): e.value for e in limits.effective(service_class=name)}
        for name in limit_specs.CLASSES
    }
    return [
        (spec, per, by_class["interactive"].get((spec.name, per)),
         by_class["batch"].get((spec.name, per)))
        for spec in limit_specs.offered()
        if not spec.is_list
        for per in spec.pers
    ]  # fmt: skip


@lru_cache(maxsize=1)
def _texts() -> dict[str, str]:
    """Return the words of every page, rendered once without what changes."""
    fixed: dict[str, Any] = {
        **_ordering(),
        "layout": "docs/bare.html",
        "errors": errors.ERRORS,
        "base_url": settings.PUBLIC_URL,
        "guides": guides.of(settings.PUBLIC_URL, "MODEL"),
        "time_zone": settings.TIME_ZONE,
    }
    return {
        one.slug: pages.plain(render_to_string(one.template, {**fixed, "page": one}))
        for one in pages.PAGES
    }
