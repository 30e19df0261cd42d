"""The ledger's script, joined from the rooms in `lua/`: one text that Redis runs as one step.

Order matters only in that a local must stand before the first line that names it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOMS = (
    "counters",  # counts and answers
    "policies",  # caps, pools, replicas, shares of a pool
    "entries",  # tickets as they are kept
    "flows",  # queues of one user and class, who speaks for them, who is active
    "fetch",  # reading together what a step will need
    "moves",  # into the queue, out of it, into a slot, out of it
    "placing",  # on which replica
    "pick",  # who is next, and the start
    "places",  # kept for those that come back
    "limits",  # requests and tokens per minute, day and month
    "queue",  # entering and leaving
    "operations",  # the verbs of tickets
    "step",  # the parts of a step
)
#: Made only in a step that needs one of them: to make a function costs as much as to run one.
RARE = (
    "fleet",  # what follows from replicas and what processes see of them; pools without any
    "time",  # what time alone brings
    "registry",  # the verbs of policies, adoption, and looking
)
FOLDER = Path(__file__).parent / "lua"


def _joined() -> bytes:
    """Return the head (what the call says), the rooms, each kind in a function, and the run."""
    return b"\n".join((
        _read("call"),
        b"local function define()", *map(_read, ROOMS), b"end",
        b"local function define_rare()", *map(_read, RARE), b"end",
        _read("run"),
    ))  # fmt: skip


def _read(room: str) -> bytes:
    return (FOLDER / f"{room}.lua").read_bytes()


SCRIPT = _joined()
SHA = hashlib.sha1(SCRIPT).hexdigest()  # noqa: S324  (Redis names scripts by SHA-1)
