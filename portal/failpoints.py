"""Named places where a test may end the process, to see that nothing is lost there.

`FAILPOINTS=name:exit:3,other:exit:1` ends the process at the third pass of `name` and the first
of `other`. Without the variable a call costs one look at an empty dictionary.
"""

from __future__ import annotations

import os

EXIT_STATUS = 86


def _read(text: str) -> dict[str, int]:
    points = {}
    for part in filter(None, text.split(",")):
        name, verb, passes = part.split(":")
        if verb != "exit":
            raise ValueError(f"FAILPOINTS knows only exit, not {verb!r}")
        points[name] = int(passes)
    return points


_POINTS = _read(os.environ.get("FAILPOINTS", ""))


def failpoint(name: str) -> None:
    """End the process here, as SIGKILL would, when the environment asks for it."""
    if not _POINTS or name not in _POINTS:
        return
    _POINTS[name] -= 1
    if _POINTS[name] == 0:
        os._exit(EXIT_STATUS)
