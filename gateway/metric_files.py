"""Keeps the folder true in which several gateways on one host add up their metrics.

Each process writes files of its own, named by its number, and whoever is scraped adds them all up.
A process that was killed leaves its files: its requests would count as running for ever, and with
every restart the folder would grow.

Rule 1: what a dead process was doing at its end (`gauge_live*`) is taken out.
Rule 2: what it had counted stays while others run: a sum that fell would look like a restart.
Rule 3: when nobody runs any more everything goes; counters begin at 0 as after any restart.
Rule 4: the files are made whole at the start. They are written through memory, and a disk that
fills up later would end the process in the middle of a request.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILE = re.compile(r"(counter|histogram|summary|gauge_\w+)_(\d+)\.db")
LIVE = "gauge_live"
# What gateway/metrics.py has, and room for the labels of some fifty models.
KINDS = ("counter", "histogram", "gauge_livesum", "gauge_livemax")
ROOM = 1 << 20


def prepare(folder: Path, own: int) -> bool:
    """Make the folder ready for this process; False when the disk has no room for it."""
    try:
        tidy(folder, own)
        for kind in KINDS:
            with (folder / f"{kind}_{own}.db").open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, ROOM)
    except OSError:
        return False
    return True


def tidy(folder: Path, own: int) -> None:
    """Take out what dead processes left; called by each process before it writes its own."""
    with _alone(folder):
        files = [(path, match) for path in folder.iterdir() if (match := FILE.fullmatch(path.name))]
        # Our own number may have been somebody else's in a life before, as it always is in a
        # container.
        living = {pid for pid in {int(match[2]) for _, match in files} - {own} if _lives(pid)}
        for path, match in files:
            if not living or (int(match[2]) not in living and match[1].startswith(LIVE)):
                path.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let processes that start at the same moment do this one after the other."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lives(pid: int) -> bool:
    """Tell whether the number is a gateway's now; where there is no /proc, any program's."""
    with suppress(OSError):
        return b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes()
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
