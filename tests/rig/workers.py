"""How `make test` deals the tests to its workers (pytest-xdist).

Most of the suite waits for processes, so two workers on two cores need little more than half the
time of one. Each has stores of its own; nothing is shared but what `tests/.cache` keeps.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling

#: What uses the products of the session stays together: two more would cost a quarter of a core.
SHARING = (
    "tests/faults/",
    "tests/journeys/",
    "tests/batches/test_beside.py",
    "tests/batches/test_clients.py",
)


class Dealer(LoadFileScheduling):
    """Deals whole files in their order, but all those that share a product as one."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SHARING):
            return "product"
        scope: str = super()._split_scope(nodeid)
        return scope


def longest_first(items: list[pytest.Item]) -> None:
    """Begin with what starts whole products, then other processes, so that all workers end soon."""
    marks = ("journey", "fault")
    items.sort(
        key=lambda item: (
            not item.nodeid.startswith(SHARING),
            not any(item.get_closest_marker(mark) for mark in marks),
        )
    )
