"""How shares are written on pages."""

from __future__ import annotations

from django import template

register = template.Library()


@register.filter
def share(value: float) -> str:
    """Return a part of one as per cent: whole above ten, else with one decimal."""
    per_cent = 100 * value
    return f"{per_cent:.0f} %" if per_cent >= 10 or per_cent == 0 else f"{per_cent:.1f} %"


@register.filter
def index(value: float) -> str:
    """Return Jain's index with two decimals."""
    return f"{value:.2f}"
