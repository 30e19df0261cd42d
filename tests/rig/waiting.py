"""Waits for what must become true, and says what did not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(true: Callable[[], Any], timeout_s: float, what: str, every_s: float = 0.05) -> Any:
    """Return the first true answer, or fail with `what` after `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while True:
        if found := true():
            return found
        if time.monotonic() > give_up:
            raise AssertionError(f"after {timeout_s:g} s still not: {what}")
        time.sleep(every_s)
