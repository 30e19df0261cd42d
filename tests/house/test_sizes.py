"""What keeps the code readable and no linter counts."""

from __future__ import annotations

import ast

from tests.house import source

LONGEST_FUNCTION = 40
LONGEST_FILE = 400
EXCUSE = "long because"


def test_no_function_is_longer_than_a_page() -> None:
    """A function has at most 40 lines, from its `def` to its last line."""
    found = [
        f"{source.name(path)}:{node.lineno} {node.name} has {length} lines"
        for path in source.files(*source.ROOMS, "clients")
        for node in ast.walk(source.tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]

    assert found == []


def test_long_file_says_why() -> None:
    """A file over 400 lines tells in its docstring what it is "long because" of."""
    found = [
        f"{source.name(path)} has {lines} lines"
        for path in source.files(*source.ROOMS, "clients", "tests")
        if (lines := path.read_text().count("\n")) > LONGEST_FILE
        and EXCUSE not in (ast.get_docstring(source.tree(path)) or "")
    ]

    assert found == []
