"""The supervisor with small real children: restarts, order, and no survivors."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from portal.processes import Program
from portal.supervisor import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    Child,
    Supervisor,
    SupervisorError,
    next_delay,
    open_socket,
)

SLEEPER = "import time; print('here', flush=True); time.sleep(600)"


def python(name: str, code: str, **more: object) -> Program:
    return Program(name=name, argv=(sys.executable, "-c", code), **more)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  (what is waited for happens in other processes)
            await asyncio.sleep(0.02)


async def pid_of(child: Child, other_than: int = 0) -> int:
    await until(lambda: bool(child.last_line) and child.process is not None)
    await until(lambda: child.process is not None and child.process.pid != other_than)
    assert child.process is not None
    return child.process.pid


class Lines:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.said.append((name, line))


@pytest.mark.parametrize(
    ("delay_s", "lived_s", "expected"),
    [(0.5, 1, 1.0), (8.0, 1, LONGEST_DELAY_S), (10.0, 1, 10.0), (10.0, 31, FIRST_DELAY_S)],
)
def test_delay_doubles_to_ten_seconds_and_is_earned_back(
    delay_s: float, lived_s: float, expected: float
) -> None:
    """Each quick ending doubles the delay up to ten seconds; half a minute of life resets it."""
    assert next_delay(delay_s, lived_s) == expected


async def test_killed_child_comes_back_and_the_others_keep_their_process() -> None:
    """A child that is killed runs again within seconds, and no other child is restarted."""
    supervisor = Supervisor(Lines())
    first, second = Child(python("first", SLEEPER)), Child(python("second", SLEEPER))
    for child in (first, second):
        supervisor.launch(child)
    before, other = await pid_of(first), await pid_of(second)

    os.kill(before, signal.SIGKILL)
    after = await pid_of(first, other_than=before)

    assert alive(after)
    assert second.process is not None
    assert (second.process.pid, second.endings) == (other, 0)
    await supervisor.stop()
    assert not alive(after)
    assert not alive(other)


async def test_children_stop_in_reverse_order() -> None:
    """The last child started is the first to end, so a store outlives whoever writes to it."""
    lines = Lines()
    supervisor = Supervisor(lines)
    tell = (
        "import signal, sys, time\n"
        "def end(*_): print('bye', flush=True); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('here', flush=True); time.sleep(600)"
    )
    for name in ("store", "writer", "door"):
        child = Child(python(name, tell))
        supervisor.launch(child)
        await pid_of(child)

    await supervisor.stop()

    assert [name for name, line in lines.said if line == "bye"] == ["door", "writer", "store"]


async def test_child_that_ignores_the_request_is_killed_with_its_own_children() -> None:
    """A child deaf to its stop signal is killed after its time, and so are its own children."""
    deaf = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(inner.pid, flush=True); time.sleep(600)"
    )
    supervisor = Supervisor(Lines())
    child = Child(python("deaf", deaf, stop_s=0.3))
    supervisor.launch(child)
    pid, inner = await pid_of(child), int(child.last_line)

    await supervisor.stop()

    assert not alive(pid)
    await asyncio.sleep(0.05)
    assert not alive(inner)


async def test_child_that_never_starts_is_explained_by_its_last_line() -> None:
    """A child that keeps ending stops the wait with one sentence that holds its own words."""

    async def never() -> bool:
        return False

    supervisor = Supervisor(Lines())
    child = Child(python("broken", "raise SystemExit('no disk')", stop_s=1), ready=never)
    supervisor.launch(child)

    with pytest.raises(SupervisorError, match=r"broken does not start.*no disk"):
        await supervisor.until_ready(child)
    await supervisor.stop()


async def test_very_long_line_is_passed_on_whole() -> None:
    """A line of a megabyte neither stops the relay nor is cut."""
    lines = Lines()
    supervisor = Supervisor(lines)
    child = Child(python("long", f"print('x' * 1_000_000, flush=True)\n{SLEEPER}"))
    supervisor.launch(child)
    await until(lambda: child.last_line == "here")

    assert ("long", "x" * 1_000_000) in lines.said
    await supervisor.stop()


def test_taken_port_is_one_sentence_that_says_what_to_do() -> None:
    """A taken port names itself and offers another."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(SupervisorError, match=f"Port {port} .* taken .*PORT={port + 1}"):
            open_socket("127.0.0.1", port)


def test_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """After kill -9 of the supervisor its children are gone within five seconds."""
    code = (
        "import asyncio, sys\n"
        "from portal.processes import Program\n"
        "from portal.supervisor import Child, Supervisor\n"
        "async def main():\n"
        "    keeper = Supervisor(lambda name, line: print(line, flush=True))\n"
        "    for name in 'abc':\n"
        "        keeper.launch(Child(Program(name=name, argv=(sys.executable, '-c',\n"
        "            'import os,time; print(os.getpid(), flush=True); time.sleep(600)'))))\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(owner.stdout.readline()) for _ in range(3)]

    owner.kill()
    owner.wait()
    owner.stdout.close()

    give_up = time.monotonic() + 5
    while any(map(alive, pids)):
        assert time.monotonic() < give_up, "a child outlived its killed supervisor"
        time.sleep(0.02)
