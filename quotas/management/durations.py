"""Reads the times people type: 90d, 12h, never, 2027-03-01."""

from __future__ import annotations

import argparse
import datetime as dt
import re

from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def lifetime(text: str) -> dt.timedelta | None:
    """Read `90d`, `12h`, or `never` (None)."""
    if text == "never":
        return None
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write 90d, 12h, 30m, or never")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


def instant(text: str) -> dt.datetime:
    """Read a date, a date with time (reporting zone unless said), or a time from now such as 7d."""
    if re.fullmatch(r"\d{1,6}[mhdw]", text):
        return timezone.now() + (lifetime(text) or dt.timedelta(0))
    try:
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)) is not None:
            moment = dt.datetime.combine(day, dt.time())
    except ValueError:
        moment = None
    if moment is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write 2027-03-01, or 7d from now")
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment
