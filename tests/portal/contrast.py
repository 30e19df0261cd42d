"""Checks the contrast pairs that tokens.css lists, in both themes."""

from __future__ import annotations

import re
from dataclasses import dataclass

COLOUR = re.compile(r"--([\w-]+):\s*light-dark\((#\w{6}),\s*(#\w{6})\)")
PAIR = re.compile(r"([\w-]+)/([\w-]+)=([\d.]+)")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two colours of one theme and how far apart they are."""

    theme: str
    fore: str
    back: str
    least: float
    ratio: float


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG 2.2 defines it."""

    def linear(channel: int) -> float:
        c = channel / 255
        return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ratio(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def pairs(css: str) -> list[Pair]:
    """Return every listed pair of a stylesheet with its contrast."""
    colours = {name: themes for name, *themes in COLOUR.findall(css)}
    listed = PAIR.findall(css[css.index("contrast pairs") :])
    return [
        Pair(theme, fore, back, float(least), ratio(colours[fore][index], colours[back][index]))
        for fore, back, least in listed
        for index, theme in enumerate(("light", "dark"))
    ]
