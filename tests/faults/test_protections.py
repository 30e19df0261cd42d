"""Every protection, switched off once, turns its fault test red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.protections import LONGEST_S, PROTECTIONS, run_without

pytestmark = pytest.mark.fault
TESTS_FAILED = 1  # pytest's code; another one means that the test could not be run at all


def test_every_protection_is_still_there() -> None:
    """Each line to be taken out stands in its file once; who rewrites it finds its new place."""
    missing = [name for name, one in PROTECTIONS.items() if not one.is_there()]
    assert missing == []
    assert len(PROTECTIONS) >= 12


@pytest.mark.long
@pytest.mark.timeout(LONGEST_S + 20)
@pytest.mark.parametrize("name", PROTECTIONS)
def test_a_protection_switched_off_is_missed(name: str, tmp_path: Path) -> None:
    """Without the protection its test fails."""
    code, printed = run_without(PROTECTIONS[name], tmp_path)
    print("\n".join(line for line in printed.splitlines() if line.startswith(("E  ", "FAILED"))))
    assert code == TESTS_FAILED, printed
