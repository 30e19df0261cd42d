"""Reads settings from the environment by type and fails at start-up on bad values.

Every name read here needs a row in docs/settings.md; a test compares the two.
"""

from __future__ import annotations

import os
from json import loads
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"", "0", "false", "no", "off"})


def text(name: str, default: str = "") -> str:
    """Read a text."""
    return os.environ.get(name, default)


def integer(name: str, default: int) -> int:
    """Read a whole number, or fail at start-up."""
    raw = os.environ.get(name, str(default))
    try:
        return int(raw)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {raw!r}") from None


def boolean(name: str, *, default: bool) -> bool:
    """Read yes or no, or fail at start-up."""
    raw = os.environ.get(name)
    if raw is None:
        return default
    value = raw.strip().lower()
    if value in TRUE:
        return True
    if value in FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {raw!r}")


def json(name: str) -> dict[str, object]:
    """Read a JSON object, or fail at start-up; unset is empty."""
    raw = os.environ.get(name) or "{}"
    try:
        found = loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ImproperlyConfigured(f"{name} must be a JSON object, not {raw[:80]!r}")
    return found


def names(name: str, default: str = "") -> list[str]:
    """Read a comma-separated list; empty parts are dropped."""
    return [part.strip() for part in os.environ.get(name, default).split(",") if part.strip()]


def origin(url: str) -> str:
    """Return scheme, host and port of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def reachable(host: str) -> str:
    """Return how an address spells the host under which this machine reaches what listens on it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host
