"""A program we run, and the promise that it never outlives us.

Rule 1: every child asks the kernel for a signal when its parent dies (Linux), so a kill -9 of
        the parent leaves nothing behind.
Rule 2: the kernel watches the parent's *thread*, so children are spawned from a thread that
        lives as long as they should: the main one.
Rule 3: each child leads its own session. Ctrl-C reaches the parent alone, which then stops the
        children in order, and a child's own children can be ended with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1

# Loaded once and early: the code that runs between fork and exec must not import anything.
_prctl: Callable[[int, int], int] | None = (
    ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None
)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run, as whom, and how it is asked to end."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 10.0
    orphan_signal: signal.Signals = signal.SIGKILL
    pass_fds: tuple[int, ...] = ()


def die_with_parent(orphan_signal: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send this process `orphan_signal` when its parent ends.

    `parent` closes the race of a parent that died before the request was made.
    """
    if _prctl is None:
        return
    _prctl(PR_SET_PDEATHSIG, int(orphan_signal))
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def popen_options(program: Program) -> dict[str, Any]:
    """Return what `subprocess` and `asyncio` both need to start `program` by these rules."""
    return {
        "env": {**os.environ, **program.env},
        "cwd": program.cwd,
        "user": program.user,
        "extra_groups": [] if program.user else None,
        "stdin": subprocess.DEVNULL,
        "stderr": subprocess.STDOUT,
        "start_new_session": True,
        "pass_fds": program.pass_fds,
        "preexec_fn": partial(die_with_parent, program.orphan_signal, os.getpid()),
    }


def spawn(program: Program, output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `program`, sending both of its outputs to `output`."""
    return subprocess.Popen(program.argv, stdout=output, **popen_options(program))


def stop(program: Program, process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, insist after `stop_s`, and end what it left behind."""
    if process.poll() is None:
        process.send_signal(program.stop_signal)
        with suppress(subprocess.TimeoutExpired):
            process.wait(program.stop_s)
    end_session(process.pid)
    process.wait()


def end_session(pid: int) -> None:
    """Kill whatever is left of the session that process `pid` led."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
