"""Reads the few numbers we want from a Prometheus text page, whatever else the page holds.

prometheus_client's own parser rejects a page for one bad line and costs 10 ms for a page of
vLLM; engines send HTML, cut pages and NaN, and each costs only the lines it is on here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.engines.base import Page

SAMPLE = re.compile(
    rb"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    rb"(?:\{((?:[^\"{}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    rb"[ \t]+(\S+)(?:[ \t]+-?\d+)?"
)
LABEL = re.compile(rb"([a-zA-Z_][a-zA-Z0-9_]*)=\"((?:[^\"\\]|\\.)*)\"")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page: its labels and its value."""

    labels: dict[str, str]
    value: float


class Exposition:
    """The wanted samples of one page, by exact name."""

    def __init__(self, page: Page, wanted: Iterable[str]) -> None:
        names = {name.encode() for name in wanted}
        self._samples: dict[str, list[Sample]] = {}
        if not page.ok:
            return
        # A line without its newline may have lost digits, so the last piece never counts.
        for line in page.body.split(b"\n")[:-1]:
            name = re.split(rb"[{ \t]", line, maxsplit=1)[0]
            if name in names:
                self._read(line.rstrip(b"\r"))

    def _read(self, line: bytes) -> None:
        match = SAMPLE.fullmatch(line.rstrip())
        if match is None:
            return
        try:
            value = float(match[3])
        except ValueError:
            return
        pairs = LABEL.findall(match[2] or b"")
        labels = {key.decode(): text.decode("utf-8", "replace") for key, text in pairs}
        self._samples.setdefault(match[1].decode(), []).append(Sample(labels, value))

    def samples(self, name: str) -> list[Sample]:
        """Return every sample of the name."""
        return self._samples.get(name, [])

    def total(self, *names: str) -> float | None:
        """Return the sum over all labels of the first name that is there, or None.

        One broken sample makes the sum unknown: a part of a sum is a wrong number.
        """
        for name in names:
            values = [sample.value for sample in self.samples(name)]
            if values:
                return sum(values) if all(math.isfinite(v) and v >= 0 for v in values) else None
        return None

    def largest(self, *names: str) -> float | None:
        """Return the largest value of the first name that is there, or None."""
        for name in names:
            values = [sample.value for sample in self.samples(name)]
            if values:
                return max(values) if all(map(math.isfinite, values)) else None
        return None

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels of the first sample (for info metrics), or none."""
        found = self.samples(name)
        return found[0].labels if found else {}
