"""Starts a witness engine, tells it what to do, and reads its books."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portal.processes import die_with_parent
from tests.rig.engine_script import Script
from tests.rig.network import free_port
from tests.rig.seeding import ROOT
from tests.rig.waiting import wait_until

# An engine hears of a hang-up a moment after it happened; so long it does not count.
HANG_UP_NOTICED_S = 0.02


@dataclass
class Record:
    """One request as the engine saw it; times are of the machine's monotonic clock."""

    number: int
    mark: str
    path: str
    headers: list[tuple[str, str]]
    body: str
    arrived_s: float
    slot_s: float | None = None
    first_s: float | None = None
    ended_s: float | None = None
    outcome: str = "running"
    tokens: int = 0
    sha256: str = ""
    bytes: int = 0

    @property
    def json(self) -> dict[str, Any]:
        """Return the body as the engine read it."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def owner(self) -> str:
        """Return the part of the mark before its slash: whose request it is."""
        return self.mark.partition("/")[0]


def read_books(path: Path) -> list[Record]:
    """Return every request of a log, in order of arrival; a torn last line is left out."""
    found: dict[tuple[int, int], Record] = {}
    life, last = 0, 0
    for line in path.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        number = event["n"]
        if event["e"] == "in":
            life += number <= last  # numbers begin again when the engine was started again
            last = number
            found[life, number] = Record(
                number, event["mark"], event["path"], [(n, v) for n, v in event["headers"]],
                event["body"], event["t"],
            )  # fmt: skip
        elif event["e"] == "slot":
            found[life, number].slot_s = event["t"]
        elif event["e"] == "first":
            found[life, number].first_s = event["t"]
        else:
            record = found[life, number]
            record.ended_s, record.outcome = event["t"], event["outcome"]
            record.tokens, record.sha256 = event["tokens"], event["sha256"]
            record.bytes = event["bytes"]
    return list(found.values())


def peak(records: Sequence[Record]) -> int:
    """Return the most requests that were at the engine at one instant."""
    steps = [(r.arrived_s, 1) for r in records]
    for record in records:
        if record.ended_s is not None:
            late_s = HANG_UP_NOTICED_S if record.outcome == "aborted" else 0.0
            steps.append((max(record.ended_s - late_s, record.arrived_s), -1))
    now = most = 0
    for _, step in sorted(steps):  # an end at the very instant of a start counts as before it
        now += step
        most = max(most, now)
    return most


def mean_overlap(records: Sequence[Record], *, until_s: float) -> float:
    """Return how many requests were at the engine on average, from the first one's arrival on."""
    since_s = min(record.arrived_s for record in records)
    at_engine_s = sum(
        min(until_s if record.ended_s is None else record.ended_s, until_s)
        - min(record.arrived_s, until_s)
        for record in records
    )
    return at_engine_s / (until_s - since_s) if until_s > since_s else float(len(records))


@dataclass
class Witness:
    """A witness engine in a process of its own."""

    folder: Path
    script: Script = field(default_factory=Script)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its base address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """Return the file of its books."""
        return self.folder / f"engine-{self.port}.log"

    @property
    def _control(self) -> Path:
        return self.folder / f"engine-{self.port}.sock"

    def start(self) -> Witness:
        """Start it, or start it again after its death, on the same port."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._control.unlink(missing_ok=True)
        self.log.touch()
        arguments = ["--port", self.port, "--control", self._control, "--log", self.log]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.rig.engine", *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(self.script.to_json().encode() + b"\n")
        self.process.stdin.close()
        wait_until(self._listens, 15, "the witness engine listens")
        return self

    def _listens(self) -> bool:
        """Does it take a connection? Its socket is there a moment earlier."""
        with socket.socket(socket.AF_UNIX) as link:
            return link.connect_ex(str(self._control)) == 0

    def tell(self, **changes: Any) -> dict[str, int]:
        """Change its behaviour from now on; returns its counters."""
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self._control))
            link.sendall(json.dumps(changes).encode() + b"\n")
            with link.makefile() as answers:
                found: dict[str, int] = json.loads(answers.readline())
        return found

    def reset(self) -> None:
        """Behave again as at the start, with empty books when nothing runs."""
        self.tell(**json.loads(self.script.to_json()))

    def counters(self) -> dict[str, int]:
        """Return running, waiting and tokens as its metrics page would."""
        return self.tell()

    def records(self, owner: str = "") -> list[Record]:
        """Return its books, of one owner if named."""
        found = read_books(self.log)
        return [record for record in found if record.owner == owner] if owner else found

    def idle(self) -> bool:
        """Answer whether nothing runs or waits in it."""
        now = self.counters()
        return now["running"] == now["waiting"] == 0

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send it a signal; SIGSTOP and SIGCONT leave it alive."""
        assert self.process is not None
        self.process.send_signal(how)
        if how in (signal.SIGKILL, signal.SIGTERM):
            self.process.wait()

    def stop(self) -> None:
        """End it."""
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()
