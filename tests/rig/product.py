"""The whole product as real processes, started the way a newcomer starts it: `manage.py up`.

Every product has its own data folder and port, so several may run beside each other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis
from psycopg.rows import dict_row

from portal import stores
from portal.processes import die_with_parent
from quotas.snapshots.credentials import Credential, sign
from tests.rig.network import free_port
from tests.rig.seeding import ROOT, seed
from tests.rig.waiting import wait_until

SECRET_KEY = "of a product under test; fifty characters and a few more"
READY_S = 90.0
# What the session's own stores put into the environment must not reach the product.
NOT_INHERITED = {"DATABASE_URL", "REDIS_URL", "DATA_DIR", "DJANGO_SETTINGS_MODULE", "SECRET_KEY"}
# How each part is told from the others in the process table.
PARTS = {
    "gateway": r"-m gateway\b|rungateway",
    "portal": r"uvicorn portal\.asgi",
    "worker": r"celery .*\bworker\b",
    "beat": r"celery .*\bbeat\b",
    "writer": r"writeusage",
    "postgres": r"/postgres -D ",
    "valkey": r"valkey-server|redis-server",
    "demo": r"portal\.demo_engine",
}


# Many keys in one start of Django.
ISSUE = """
import json
from quotas.services import keys, people
print(json.dumps({{
    name: keys.issue(
        owner=people.ensure_user(username=name), name=f"{{name}} {{kind}}", service_class=kind
    ).secret
    for name, kind in {owners}.items()
}}))
"""


REGISTER = """
import json
from quotas.services import engines
print(json.dumps({{
    model: engines.register(url=url, pool=model, kind="vllm", slots={slots}).public_id
    for model, url in {urls}.items()
}}))
"""


@dataclass(frozen=True)
class Process:
    """One row of the process table."""

    pid: int
    parent: int
    command: str


def process_table() -> dict[int, Process]:
    """Return every living process; zombies are not alive."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if status[0] != "Z":
                found[int(entry.name)] = Process(int(entry.name), int(status[1]), command.strip())
    return found


def descendants(pid: int) -> list[Process]:
    """Return all processes below `pid`."""
    table, found, level = process_table(), [], {pid}
    while level:
        children = [process for process in table.values() if process.parent in level]
        found += children
        level = {process.pid for process in children}
    return found


def alive(processes: Sequence[Process]) -> list[Process]:
    """Return those that still run, and are not other programs with the same number."""
    table = process_table()
    return [p for p in processes if p.pid in table and table[p.pid].command == p.command]


@dataclass
class Product:
    """One installation."""

    folder: Path
    engine_url: str
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the public address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        """Return the data folder."""
        return self.folder / "data"

    @property
    def output(self) -> str:
        """Return everything the product has printed."""
        return (self.folder / "up.log").read_text(errors="replace")

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of every command of this installation."""
        inherited = {n: v for n, v in os.environ.items() if n not in NOT_INHERITED}
        return inherited | {
            "DATA_DIR": str(self.data_dir),
            "PORT": str(self.port),
            "SECRET_KEY": SECRET_KEY,
            "ENGINE_URL": self.engine_url,
            **self.settings,
        }

    # --- life -----------------------------------------------------------------------------

    def start(self, *, ready: bool = True) -> Product:
        """Start it, or start it again with the same data."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.data_dir.exists():
            seed(self.data_dir)
        with (self.folder / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Return once requests can be answered."""

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"the product ended:\n{self.output[-4000:]}"
            return self.get("/readyz", timeout=2) == 200

        try:
            wait_until(is_ready, timeout_s, "the product is ready", every_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-4000:]}") from None

    def get(self, path: str, **options: Any) -> int:
        """Return the status of a GET, 0 when nobody answers."""
        try:
            return httpx.get(self.url + path, **options).status_code
        except httpx.HTTPError:
            return 0

    def stop(self) -> None:
        """End it the quick way: its programs die with their supervisor. Nothing is left."""
        if self.process is None:
            return
        below = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        give_up = time.monotonic() + 5
        while (left := alive(below)) and time.monotonic() < give_up:
            time.sleep(0.05)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.process = None
        shutil.rmtree(stores.run_dir(self.data_dir), ignore_errors=True)

    # --- parts ----------------------------------------------------------------------------

    def parts(self) -> dict[str, list[int]]:
        """Return the pids of each part: those the supervisor started, the first one first."""
        assert self.process is not None
        found: dict[str, list[int]] = {name: [] for name in PARTS}
        for process in sorted(descendants(self.process.pid), key=lambda one: one.pid):
            if process.parent != self.process.pid:
                continue
            for name, pattern in PARTS.items():
                if re.search(pattern, process.command):
                    found[name].append(process.pid)
                    break
        return found

    def pid(self, part: str) -> int:
        """Return the pid of a part that runs once; 0 while it does not run."""
        pids = self.parts()[part]
        return pids[0] if pids else 0

    def kill(self, part: str, how: int = signal.SIGKILL) -> int:
        """Send a part a signal; returns the pid it had."""
        pid = self.pid(part)
        assert pid, f"{part} does not run: {self.parts()}"
        os.kill(pid, how)
        return pid

    # --- what is inside ---------------------------------------------------------------------

    def manage(self, *arguments: str, timeout_s: float = 60) -> str:
        """Run a command of the installation; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, f"manage.py {arguments} failed:\n{done.stdout}{done.stderr}"
        return done.stdout

    def key(self, user: str, service_class: str = "interactive", *options: str) -> str:
        """Return the secret of a new key."""
        text = self.manage("issuekey", "--user", user, "--class", service_class, "--json", *options)
        secret: str = json.loads(text)["secret"]
        return secret

    def keys(self, **owners: str) -> dict[str, str]:
        """Return new keys' secrets by their owners' names; the values are classes of service."""
        found: dict[str, str] = json.loads(
            self.manage("shell", "--no-imports", "-c", ISSUE.format(owners=owners)).splitlines()[-1]
        )
        return found

    def engines(self, urls: Mapping[str, str], slots: int = 4) -> dict[str, str]:
        """Register engines by their models; returns the replicas' ids."""
        script = REGISTER.format(urls=dict(urls), slots=slots)
        found: dict[str, str] = json.loads(
            self.manage("shell", "--no-imports", "-c", script).splitlines()[-1]
        )
        return found

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with psycopg.connect(stores.postgres_url(self.data_dir), autocommit=True) as link:
            return link.execute(query, values or None).fetchall()  # type: ignore[arg-type]

    def usage(self, mark: str, rows: int = 1) -> list[dict[str, Any]]:
        """Return the usage rows of the requests with this mark, waiting until they are written."""

        def read() -> list[dict[str, Any]]:
            with psycopg.connect(stores.postgres_url(self.data_dir), row_factory=dict_row) as link:
                query = "SELECT * FROM usage_event WHERE client_request_id = %s ORDER BY arrived_at"
                found = link.execute(query, [mark]).fetchall()
            return found if len(found) >= rows else []

        found: list[dict[str, Any]] = wait_until(read, 30, f"{mark} has {rows} usage rows")
        return found

    def redis(self) -> redis.Redis:
        """Return a connection to its Valkey."""
        return redis.Redis.from_url(stores.valkey_url(self.data_dir))

    def live(self) -> dict[str, Any]:
        """Return what the gateway tells the portal about this moment."""
        credential = Credential(scope="live", key_digest="", expires_at=time.time() + 60)
        answer = httpx.get(
            self.url + "/internal/live",
            headers={"Authorization": f"Bearer {sign(SECRET_KEY, credential)}"},
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def advance(self, seconds: float) -> None:
        """Move ledger time; the product must have been started with TEST_CLOCK=1."""
        answer = httpx.post(self.url + "/internal/advance", json={"ms": int(seconds * 1000)})
        assert answer.is_success, answer.text
