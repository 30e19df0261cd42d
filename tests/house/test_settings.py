"""docs/settings.md and the settings really read say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house import source

DOCUMENT = source.ROOT / "docs" / "settings.md"
READERS = {"text", "integer", "boolean", "names", "choice", "get", "number", "seconds", "json"}
NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}")
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \|", re.MULTILINE)
# Set by us, Django or make for our own processes; nobody tunes them.
NOT_SETTINGS = {"DJANGO_SETTINGS_MODULE", "MAKELEVEL"}


def owner(node: ast.expr) -> str:
    """Return the last name of what a method is called on: `env` for `env.text(...)`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def reads(tree: ast.AST) -> Iterator[str]:
    """Yield every name that is read from the environment, by a typed reader or directly."""
    for node in ast.walk(tree):
        asked: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in READERS and owner(node.func.value) in {"env", "environ"}:
                asked = node.args[0]
        elif isinstance(node, ast.Subscript) and owner(node.value) == "environ":
            asked = node.slice
        elif isinstance(node, ast.Compare) and owner(node.comparators[0]) == "environ":
            asked = node.left
        if isinstance(asked, ast.Constant) and NAME.fullmatch(str(asked.value)):
            yield str(asked.value)


def names_read() -> set[str]:
    found = {name for path in source.files(*source.ROOMS) for name in reads(source.tree(path))}
    return found - NOT_SETTINGS


def test_every_setting_is_documented() -> None:
    """Every environment variable we read has a row in docs/settings.md."""
    documented = set(ROW.findall(DOCUMENT.read_text()))

    assert sorted(names_read() - documented) == []


def test_nothing_is_documented_that_nobody_reads() -> None:
    """A row whose setting is gone would be believed; it has to go too."""
    documented = set(ROW.findall(DOCUMENT.read_text()))

    assert sorted(documented - names_read()) == []


def test_the_reader_of_settings_sees_every_way_of_reading() -> None:
    """The test above finds names read by helpers, directly, by subscript and by membership."""
    code = (
        "env.text('AAA'); environ.Env(); os.environ.get('BBB'); os.environ['CCC']\n"
        "'DDD' in os.environ; env.choice('EEE', 'a', ('a',)); other.text('NOT')\n"
    )

    assert set(reads(ast.parse(code))) == {"AAA", "BBB", "CCC", "DDD", "EEE"}
