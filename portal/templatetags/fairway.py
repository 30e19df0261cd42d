"""Filters that put numbers and times into the words of the pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django import template
from django.conf import settings
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal import words
from portal.context import MEMBER_NAV
from quotas.limits import LimitSpec

register = template.Library()
register.filter("span", words.span)
register.filter("about", words.about)
register.filter("clock", words.clock)
register.filter("count", words.count)
register.filter("head_start", words.head_start)
CUT_AT = 400
# The first that is found counts: everybody claims to be Mozilla, Chrome claims to be Safari.
BROWSERS = (
    ("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("HeadlessChrome/", "Chromium"),
    ("Chrome/", "Chrome"), ("Safari/", "Safari"), ("curl/", "curl"), ("python", "a Python program"),
)  # fmt: skip
SYSTEMS = (
    ("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"),
    ("Mac OS X", "macOS"), ("CrOS", "ChromeOS"), ("Linux", "Linux"),
)  # fmt: skip


@register.filter
def age(then: datetime | None) -> SafeString | str:
    """Return `3 s ago` with the exact moment in UTC on hover; never for None."""
    if then is None:
        return "never"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        then.isoformat(),
        then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        words.ago(then, timezone.now()),
    )


@register.filter
def moment(then: datetime | None) -> SafeString | str:
    """Return a day and time in the reader's zone, with UTC on hover."""
    if then is None:
        return "never"
    local = timezone.localtime(then)
    days = (timezone.localtime().date() - local.date()).days
    if days == 0:
        text = f"today, {local:%H:%M}"
    elif abs(days) < 300:
        text = f"{local.day} {local:%b, %H:%M}"
    else:
        text = f"{local.day} {local:%b %Y}"
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        then.isoformat(),
        then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        text,
    )


@register.filter
def day(then: datetime | None) -> SafeString | str:
    """Return a calendar day in the reader's zone, with the moment in UTC on hover."""
    if then is None:
        return "never"
    local = timezone.localtime(then)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        then.isoformat(),
        then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        f"{local.day} {local:%b %Y}",
    )


@register.filter
def time_left(until: datetime) -> str:
    """Return how long something still lasts."""
    return words.left(until, timezone.now())


@register.filter
def seconds(milliseconds: float | None) -> float | None:
    """Return seconds from milliseconds; unknown stays unknown."""
    return None if milliseconds is None else milliseconds / 1000


@register.filter
def clock_time(then: datetime | None, with_seconds: bool = False) -> str:
    """Return hh:mm in the reader's zone, with seconds if wanted."""
    if then is None:
        return "never"
    return f"{timezone.localtime(then):{'%H:%M:%S' if with_seconds else '%H:%M'}}"


@register.filter
def exact(number: int | None) -> str:
    """Return a whole number with its thousands apart."""
    return "unknown" if number is None else f"{number:,}"


@register.filter
def limit_value(value: int | tuple[str, ...] | None) -> str:
    """Return a limit as people read it; None is no limit."""
    if value is None:
        return "no limit"
    return ", ".join(value) if isinstance(value, tuple) else f"{value:,}"


@register.filter
def usual_per(spec: LimitSpec) -> str:
    """Return what a person's limit is counted over."""
    return spec.usual_per("user")


@register.filter
def precise(number: float) -> str:
    """Return a measured number with one decimal below ten, none above a hundred."""
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


@register.filter
def exact_moment(then: datetime) -> SafeString:
    """Return day and time to the second in the reader's zone, with UTC on hover."""
    local = timezone.localtime(then)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        then.isoformat(),
        then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        f"{local.day} {local:%b, %H:%M:%S}",
    )


@register.filter
def reporting_day(start: datetime) -> str:
    """Return a day of the reporting zone, whatever zone the reader lives in."""
    local = start.astimezone(ZoneInfo(settings.TIME_ZONE))
    return f"{local:%a} {local.day} {local:%b}"


@register.filter
def page_name(address: str) -> str:
    """Return the menu's name of the page at an address; nothing for other addresses."""
    found = [item.label for item in MEMBER_NAV if address.startswith(item.address)]
    return found[-1] if found else ""


@register.filter
def percent(value: float) -> str:
    """Return a position as SVG takes it; never in the reader's number format."""
    return f"{value:g}%"


@register.filter
def rest_of_hundred(value: float) -> float:
    """Return what is left to the right edge, in per cent."""
    return round(100 - value, 2)


@register.filter
def plus(value: float, more: float) -> float:
    """Add, for positions that belong together."""
    return value + more


@register.filter
def minus(value: int, less: int) -> int:
    """Take away."""
    return value - less


@register.filter
def coord(value: float) -> str:
    """Return a number as SVG takes it, with a point whatever the language."""
    return f"{value:g}"


@register.filter
def browser(user_agent: str) -> str:
    """Return a browser and its system in words; what is not recognised is shown as it came."""
    name = next((word for mark, word in BROWSERS if mark in user_agent), "")
    system = next((word for mark, word in SYSTEMS if mark in user_agent), "")
    return f"{name} on {system}" if name and system else name or user_agent[:120]


@register.filter
def named(names: Mapping[str, str], number: str) -> str:
    """Return the name of a person, or that they are gone."""
    return names.get(number, f"former user {number}")


@register.filter
def cut(text: object, most: int = CUT_AT) -> SafeString | str:
    """Shorten a text, and say that it is short and how long it was."""
    whole = str(text)
    if len(whole) <= most:
        return whole
    return format_html(
        '{}<span class="meta"> … cut here, {} characters in all</span>',
        whole[:most],
        f"{len(whole):,}",
    )
