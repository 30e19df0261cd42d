"""Moves the wall clock of every Python program that finds this folder in PYTHONPATH.

The seconds to add stand in the file named by MOVED_CLOCK and are read anew when it changes, so a
whole product can be taken to a quarter of a minute before midnight while it runs. The monotonic
clock, and so every timeout, stays as it is. PostgreSQL and Redis keep the host's clock.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

_FILE = os.environ.get("MOVED_CLOCK", "")
_EVERY_S = 0.1
_time, _time_ns, _monotonic = time.time, time.time_ns, time.monotonic
_real = datetime.datetime


class _Shift:
    """The seconds in the file, looked up ten times a second at most."""

    def __init__(self) -> None:
        self.seconds, self._next = 0.0, float("-inf")

    def __call__(self) -> float:
        now = _monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            with open(_FILE) as file:  # noqa: PTH123  (pathlib itself is not loaded yet)
                self.seconds = float(file.read() or 0)
        return self.seconds


class _AnyDatetime(type):
    """What C code made counts as one of ours."""

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, _real)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, _real)


if _FILE:
    _shift = _Shift()

    class _Moved(_real, metaclass=_AnyDatetime):
        """`datetime` whose present is moved; what it makes are ordinary ones."""

        def __new__(cls, *given: Any, **named: Any) -> Any:
            return _real(*given, **named)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return _real.fromtimestamp(_time() + _shift(), tz)

    time.time = lambda: _time() + _shift()
    time.time_ns = lambda: _time_ns() + int(_shift() * 1e9)
    datetime.datetime = _Moved  # type: ignore[misc]
