"""Tables that name tests name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"`((?:[\w/]*test_\w+\.py|…))(?:::(\w+))?`")
TABLES = ["faults/README.md", "gateway/wire/README.md"]


def names_in(path: Path) -> set[str]:
    """Return the functions of a file."""
    return {n.name for n in ast.walk(ast.parse(path.read_text())) if hasattr(n, "name")}


@pytest.mark.parametrize("table", TABLES)
def test_every_test_a_table_names_is_there(table: str) -> None:
    """A row may name a file beside it or below tests/, and a test in it; `…` is the last file."""
    home, missing, file = (TESTS / table).parent, [], TESTS
    for line in (TESTS / table).read_text().splitlines():
        for named, test in NAMED.findall(line):
            if named != "…":
                places = (home / named, TESTS / named, TESTS.parent / named)
                file = next((place for place in places if place.exists()), TESTS)
            if not file.is_file() or (test and test not in names_in(file)):
                missing.append(f"{named}::{test}")

    assert missing == []
