"""Reads the recorded answers of real engines in tests/data/engines."""

from __future__ import annotations

from pathlib import Path

from gateway.engines.base import Page

FOLDER = Path(__file__).resolve().parents[2] / "data" / "engines"


def recorded(kind: str, name: str) -> Page:
    """Return one recorded answer: request line, blank, status and headers, blank, body."""
    text = (FOLDER / kind / f"{name}.txt").read_text()
    _, head, body = text.split("\n\n", 2)
    status, *lines = head.splitlines()
    headers = dict(line.partition(": ")[::2] for line in lines)
    return Page(status=int(status.split()[1]), body=body.encode(), headers=headers)


def page(text: str | bytes, status: int = 200) -> Page:
    """Return an answer with this body."""
    return Page(status=status, body=text.encode() if isinstance(text, str) else text)
