"""Keeps the programs of the one-command setup running, and leaves nothing behind.

Rule 1: a program that ends is started again, alone: the others never notice.
Rule 2: programs stop in the reverse order of their start, so the stores go last.
Rule 3: the public socket is opened here and handed down, so a dying gateway never frees the
        port, and several gateways share it.
A killed supervisor takes its programs with it: `portal.processes` sees to that.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from portal import processes
from portal.processes import Program

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 10.0
HEALTHY_AFTER_S = 30.0  # a program that lived this long earns a quick restart again
TRIES = 3  # endings before the first use that make us give up
BACKLOG = 2048
CHUNK = 65536
DRAIN_S = 2.0  # for the last lines of a child that has ended

Prepare = Callable[[], Program]
Ready = Callable[[], Awaitable[bool]]
Say = Callable[[str, str], None]


class SupervisorError(Exception):
    """The setup cannot run; the message is one plain sentence for the person at the terminal."""


@dataclass
class Child:
    """One row of the table: what runs, and how to tell that it is of use."""

    program: Program
    ready: Ready | None = None
    ready_s: float = 60.0
    log: Path | None = None  # where its lines go instead of to `say`
    last_line: str = ""
    endings: int = 0
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    keeper: asyncio.Task[None] | None = None


def next_delay(delay_s: float, lived_s: float) -> float:
    """Return how long to wait before the restart after this one."""
    if lived_s >= HEALTHY_AFTER_S:
        return FIRST_DELAY_S
    return min(delay_s * 2, LONGEST_DELAY_S)


def open_socket(host: str, port: int) -> socket.socket:
    """Open the public listening socket, or say in one sentence why it cannot be opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except PermissionError:
        raise SupervisorError(
            f"Port {port} needs more rights than this user has: set PORT to one above 1023."
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SupervisorError(
                f"Port {port} on {host} is taken by another program: stop that one, "
                f"or choose another port, for example PORT={port + 1} make up."
            ) from None
        raise SupervisorError(
            f"Cannot listen on {host} port {port} ({os.strerror(error.errno or 0)}): "
            "set HOST to an address of this machine."
        ) from None


@dataclass
class Supervisor:
    """Starts children, keeps them, and stops them; `say` gets every line they print."""

    say: Say
    groups: list[tuple[Child, ...]] = field(default_factory=list)

    def launch(self, *children: Child) -> None:
        """Start children and keep them running until `stop`; a log holds this run only."""
        self.groups.append(children)
        for child in children:
            if child.log is not None:
                child.log.write_text("")
            child.keeper = asyncio.create_task(self._keep(child), name=child.program.name)

    async def until_ready(self, *children: Child) -> None:
        """Return once all of these are of use; give up when one keeps ending or takes too long."""
        started = time.monotonic()
        waiting = list(children)
        while waiting:
            late = time.monotonic() - started
            for child in children:
                if child.endings >= TRIES or (child in waiting and late > child.ready_s):
                    raise SupervisorError(
                        f"{child.program.name} does not start; the last it said is: "
                        f"{child.last_line or 'nothing'}"
                    )
            waiting = [child for child in waiting if not await _is_ready(child)]
            await asyncio.sleep(0.1)

    async def stop(self) -> None:
        """Stop all children: what was launched last first, what was launched together together."""
        while self.groups:
            await asyncio.gather(*map(_stop, self.groups.pop()))

    async def _keep(self, child: Child) -> None:
        """Run the child again and again; `leaving` ends this, so no start is ever cut in two."""
        delay_s = FIRST_DELAY_S
        while not child.leaving.is_set():
            started = time.monotonic()
            child.process = await asyncio.create_subprocess_exec(
                *child.program.argv,
                stdout=asyncio.subprocess.PIPE,
                **processes.popen_options(child.program),
            )
            if child.leaving.is_set():
                await _end(child.program, child.process)
            await self._relay(child, child.process)
            code = await child.process.wait()
            if child.leaving.is_set():
                return
            child.endings += 1
            self.say(child.program.name, f"ended with {_spell(code)}; again in {delay_s:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(child.leaving.wait(), delay_s)
            delay_s = next_delay(delay_s, time.monotonic() - started)

    async def _relay(self, child: Child, process: asyncio.subprocess.Process) -> None:
        """Pass on what the child prints, line by line, until it has ended."""
        reader = asyncio.create_task(self._read(child, process))
        await process.wait()
        processes.end_session(process.pid)  # its own children hold the pipe open otherwise
        await asyncio.wait([reader], timeout=DRAIN_S)
        reader.cancel()

    async def _read(self, child: Child, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101  (asked for in _keep)
        rest = b""
        while chunk := await process.stdout.read(CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._hear(child, line.decode(errors="replace").rstrip())

    def _hear(self, child: Child, line: str) -> None:
        if not line:
            return
        child.last_line = line
        if child.log is None:
            self.say(child.program.name, line)
            return
        with child.log.open("a") as file:
            file.write(f"{line}\n")


async def _stop(child: Child) -> None:
    child.leaving.set()
    if child.process is not None:
        await _end(child.program, child.process)
    if child.keeper is not None:
        await child.keeper


async def _end(program: Program, process: asyncio.subprocess.Process) -> None:
    """Ask the process to end, insist after `stop_s`, and end what it left behind."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(program.stop_signal)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), program.stop_s)
    processes.end_session(process.pid)
    await process.wait()


async def _is_ready(child: Child) -> bool:
    return child.ready is None or await child.ready()


def _spell(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"
