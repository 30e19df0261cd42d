"""The plan of the house: which room may enter which. `docs/architecture.md` draws it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house import source

# Innermost first: a file belongs to the first room that holds it.
MAY_IMPORT = {
    "gateway/core": {"gateway.core"},
    "gateway/management": {"gateway", "quotas.services", "quotas.snapshots", "quotas.models"},
    "gateway": {"gateway", "quotas.snapshots"},
    "quotas/snapshots": {"quotas.snapshots"},
    "quotas": {"quotas"},
    "portal": {"portal", "quotas"},
}
OURS = ("gateway", "quotas", "portal", "tests")
HAS_DJANGO = {"gateway/management", "quotas", "portal"}
DJANGO = ("django", "celery", "rest_framework", "allauth")
ADDED_TO_CORE = {"orjson"}
ADDED_TO_SNAPSHOTS = {"cryptography"}  # by `sealed`, for those who keep a secret of an engine


def room_of(name: str) -> str:
    return next(room for room in MAY_IMPORT if name.startswith(f"{room}/"))


def within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_room_enters_only_the_rooms_it_may(room: str) -> None:
    """A file imports of our own code only what the plan grants to its room."""
    found = [
        f"{source.name(path)} imports {module}"
        for path in source.files(room)
        if room_of(source.name(path)) == room
        for module in source.imports(path)
        if module.split(".")[0] in OURS and not within(module, MAY_IMPORT[room])
    ]

    assert found == []


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - HAS_DJANGO))
def test_data_plane_names_no_django(room: str) -> None:
    """No file of the data plane, nor the snapshots it reads, imports Django or its relatives."""
    found = [
        f"{source.name(path)} imports {module}"
        for path in source.files(room)
        if room_of(source.name(path)) == room and path.name != "apps.py"
        for module in source.imports(path)
        if module.split(".")[0] in DJANGO
    ]

    assert found == []


@pytest.mark.parametrize(
    ("room", "added"), [("gateway/core", ADDED_TO_CORE), ("quotas/snapshots", ADDED_TO_SNAPSHOTS)]
)
def test_pure_rooms_need_the_standard_library_only(room: str, added: set[str]) -> None:
    """Pure decisions and snapshots run on any Python without our packages."""
    allowed = sys.stdlib_module_names | added | {"gateway", "quotas"}
    found = [
        f"{source.name(path)} imports {module}"
        for path in source.files(room)
        for module in source.imports(path)
        if module.split(".")[0] not in allowed
    ]

    assert found == []


def test_running_gateway_loads_no_django() -> None:
    """The gateway's process never loads Django, whatever its imports import in turn."""
    code = (
        "import sys, gateway.wiring, gateway.server\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('django', 'portal')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=source.ROOT
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
