"""Tells owners what they should not have to look for: the end of a job, and a silence."""

from __future__ import annotations


def send_due() -> None:
    """Send the notices that are due, each once."""
