"""Our own source, read as trees, for the tests that hold the house rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("gateway", "quotas", "portal")


def files(*folders: str) -> list[Path]:
    """Return the Python files below these folders, without generated migrations."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if not {"migrations", ".cache"} & set(path.parts))


@cache
def tree(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(), str(path))


def name(path: Path) -> str:
    """Return the path as people write it."""
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of every module that the file imports, wherever it does so."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
