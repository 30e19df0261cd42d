"""Numbers and times in the words of the pages: always with a unit, never more exact than known."""

from __future__ import annotations

from datetime import datetime, timedelta

MINUS = "−"


def span(seconds: float) -> str:
    """Return a length of time: `41 s`, `10 min 45 s`, `9 h 28 min`, `6 days`."""
    whole = round(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 15 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def about(seconds: float | None) -> str:
    """Return an estimate, rounded as coarsely as estimates deserve; unknown says so."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return "at once"
    if seconds < 10:
        return f"{round(seconds)} s"
    if seconds < 60:
        return f"{round(seconds / 5) * 5} s"
    if seconds < 3600:
        return f"{max(1, round(seconds / 60))} min"
    return f"{seconds / 3600:.1f} h".replace(".0 h", " h")


def starts(seconds: float | None) -> str:
    """Return when a newcomer would start, for the middle of a sentence."""
    if seconds is None:
        return "starts at an unknown time"
    return "starts at once" if seconds < 1 else f"starts in about {about(seconds)}"


def clock(seconds: float) -> str:
    """Return a running time as on a stopwatch: `41 s`, `1:52`, `1:02:09`."""
    whole = int(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def head_start(seconds: float) -> str:
    """Return a head start with its sign: `+45 s`, `−3 min 30 s`."""
    sign = MINUS if round(seconds) < 0 else "+"
    return sign + span(abs(seconds))


def count(number: float | None) -> str:
    """Return a count people can read at a glance: `812`, `9.4k`, `126k`, `1.82M`."""
    if number is None:
        return "unknown"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,700 is already 1M when rounded to what is shown.
        if number >= size * 0.9995:
            value = number / size
            digits = 2 if value < 10 else 1 if value < 100 else 0
            text = f"{value:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text) + unit
    return f"{round(number):,}"


def ago(then: datetime | None, now: datetime) -> str:
    """Return how long ago something was, or `never`."""
    if then is None:
        return "never"
    seconds = (now - then).total_seconds()
    return "just now" if seconds < 1 else f"{span_short(seconds)} ago"


def span_short(seconds: float) -> str:
    """Return a length of time in its largest unit only."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            number = int(seconds // size)
            return "1 day" if (number, unit) == (1, "days") else f"{number} {unit}"
    return f"{int(seconds)} s"


def left(until: datetime, now: datetime) -> str:
    """Return how long something still lasts: `in 6 days`, `in 9 h 28 min`, `over`."""
    rest = until - now
    return f"in {span(rest.total_seconds())}" if rest > timedelta(0) else "over"


def cut(text: str, most: int) -> str:
    """Return the text, or its head with the words that it is cut and how long it was."""
    return (
        text if len(text) <= most else f"{text[:most]} … cut here, {len(text):,} characters in all"
    )


def plural(number: int, one: str, many: str) -> str:
    """Return `1 request`, `2 requests`."""
    return f"{number:,} {one if number == 1 else many}"
