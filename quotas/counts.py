"""Reads counts as people write them, and never guesses: what could be two numbers is none."""

from __future__ import annotations

import re

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
# 40000, 40,000, 40 000, 40_000; with a size also 1.5M. "1,5" is neither 1.5 nor 15.
_COUNT = re.compile(r"(\d+|\d{1,3}(?:[ ,_]\d{3})+)(?:\.(\d{1,9}))?([kmg]?)", re.ASCII)


def read_count(text: str) -> int:
    """Return a whole number, or raise `ValueError` with a sentence."""
    found = _COUNT.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text[:40]!r} is no whole number, such as 40000, 40,000, 200k or 1.5M.")
    whole, part, size = found[1], found[2] or "", _SIZES[found[3]]
    digits = int(re.sub(r"[ ,_]", "", whole) + part) * size
    unit: int = 10 ** len(part)
    number, rest = divmod(digits, unit)
    if rest:
        raise ValueError(f"{text[:40]!r} is no whole number.")
    return number
