"""The hot modules as machine code, where somebody has built it: `make compiled`.

mypyc translates the very same files; nothing is written for it alone, and without it everything
answers the same, with half as much CPU again. A C compiler and Python's headers are needed to build
and nothing to run.

Rule 1: what is built lies outside the source, in a folder named after the source it was made of,
so a changed file is never run in the form it had before.
Rule 2: only `python -m gateway` uses it, before it imports anything else.
Rule 3: classes of errors stay out (`errors.py`): a compiled subclass of one that is not has no
class attributes of its own. Nor does a compiled class keep what `cached_property` found.
Rule 4: nothing is awaited in an `except` or a `finally`: what a compiled coroutine handles while it
waits becomes the error of any other that ends meanwhile (mypyc keeps one for the whole thread).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "compiled"
#: What a request and an event pass through; what only starts, watches or tells is left as it is.
MODULES = (
    "core/affinity", "core/estimate", "core/events", "core/fields", "core/headers", "core/placing",
    "core/prompt", "core/ranking", "core/sharing", "core/tier", "core/types", "core/usage",
    "core/usage_reader",
    "ledger/batch", "ledger/desk", "ledger/dispatch", "ledger/homes", "ledger/interface",
    "ledger/lines", "ledger/memory", "ledger/operations", "ledger/quota", "ledger/redis",
    "ledger/shell", "ledger/state", "ledger/waiting", "ledger/wire", "fleet/activity",
    "fleet/pages", "aftermath", "answer", "app", "arrival", "authenticate", "caller", "charges",
    "client", "connection", "counters", "dispatch", "door", "holding", "inbound", "intake",
    "metrics", "outgoing", "passthrough", "quota", "record", "relay", "request", "request_id",
    "retry", "services", "ticket", "upstream", "usage",
)  # fmt: skip
#: The shape of a build: raise it when what `build` does changes.
FORM = "1"
_CONFIG = "[mypy]\nignore_missing_imports = True\nfollow_imports = silent\n"


def folder(modules: Sequence[str] = MODULES, home: Path = HOME) -> Path:
    """Return where the compiled form of these modules, as they are now, is or would be."""
    digest = hashlib.sha256(f"{FORM} {EXTENSION_SUFFIXES[0]}".encode())
    for name in modules:
        digest.update(name.encode() + b"\0" + (ROOT / "gateway" / f"{name}.py").read_bytes())
    return home / digest.hexdigest()[:16]


def use(place: Path | None = None) -> bool:
    """Import compiled modules from now on; False where there are none of this source."""
    place = place or folder()
    if not place.is_dir():
        return False
    sys.path.append(str(place))  # what the modules share lies beside them
    for name in ("gateway", "gateway.core", "gateway.fleet", "gateway.ledger"):
        package = importlib.import_module(name)
        package.__path__.insert(0, str(place / name.replace(".", "/")))
    return True


def build(modules: Sequence[str] = MODULES, home: Path = HOME) -> Path:
    """Compile the modules; what was built of other sources is removed."""
    from mypyc.build import mypycify
    from setuptools import setup

    place = folder(modules, home)
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="work-") as work:
        config = Path(work) / "mypy.ini"
        config.write_text(_CONFIG)
        paths = [f"gateway/{name}.py" for name in modules]
        options = [f"--config-file={config}", f"--cache-dir={work}/cache", *paths]
        made = Path(work) / "made"
        with contextlib.chdir(ROOT):  # the modules' names are their paths from here
            extensions = mypycify(options, opt_level="1", target_dir=f"{work}/c")
        with contextlib.chdir(work):  # away from pyproject.toml, which is none of its business
            setup(
                name="fairway",
                packages=[],
                py_modules=[],
                ext_modules=extensions,
                script_args=[
                    "-q", "build_ext", f"--build-lib={made}", f"--build-temp={work}/objects",
                ],
            )  # fmt: skip
        for old in home.iterdir():
            if not old.name.startswith("work-"):  # another build may be under way
                shutil.rmtree(old)
        made.rename(place)
    return place


if __name__ == "__main__":
    print(f"Compiling {len(MODULES)} modules; a few minutes", flush=True)  # noqa: T201
    print(build())  # noqa: T201
