"""Starting and watching what is measured: ours, with either ledger, and nginx as the floor."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import redis

from portal.processes import die_with_parent
from quotas.snapshots import directory as published
from quotas.snapshots import keyformat
from quotas.snapshots.counters import USED, ZONE
from quotas.snapshots.directory import Fleet, KeySnapshot, Limits, PoolSnapshot, ReplicaSnapshot

ROOT = Path(__file__).resolve().parents[2]
PROXY_CORE, LOAD_CORE = 0, 1
NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 4096; }}
http {{ access_log off; {temporary}
upstream engine {{ server 127.0.0.1:{engine}; keepalive 512; }}
server {{ listen 127.0.0.1:{port}; keepalive_requests 100000000; client_max_body_size 64m;
location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
proxy_buffering off; proxy_request_buffering off; }} }} }}
"""


# Starts the gateway as if nobody had compiled it.
INTERPRETED = (
    "import runpy; from gateway import compiled; compiled.use = lambda: False;"
    "runpy.run_module('gateway', run_name='__main__')"
)


class Missing(Exception):
    """This proxy cannot be had here; the text says why."""


@dataclass
class Peer:
    """A running proxy."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    secret: str = "x"
    headers: str = ""  # that requests through it need beside the usual

    def pids(self) -> list[int]:
        """Return the process and all below it."""
        found, level = [], [self.process.pid]
        while level:
            found += level
            below = []
            for pid in level:
                with contextlib.suppress(OSError):
                    for task in Path(f"/proc/{pid}/task").iterdir():
                        below += [int(child) for child in (task / "children").read_text().split()]
            level = below
        return found

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads, user and system."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def memory_mib(self) -> float:
        """Return its memory, what is shared with others in equal parts (PSS)."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += int(rollup.partition("Pss:")[2].split()[0])
        return total / 1024


def launch(
    name: str, argv: list[str], port: int, path: str, *, patience_s: float = 20, **environment: str
) -> Peer:
    """Start a proxy, wait until it answers, and give it its core."""
    process = subprocess.Popen(
        argv, cwd=ROOT, env={**os.environ, **environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,
    )  # fmt: skip
    for _ in range(round(patience_s / 0.05)):
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}{path}", timeout=1).status_code < 500:
                if (os.cpu_count() or 1) > 1:
                    pin(process.pid)
                return Peer(name, port, process)
        if process.poll() is not None:
            raise Missing(f"{name} ended while starting")
        time.sleep(0.05)
    process.kill()
    raise Missing(f"{name} did not answer")


def pin(pid: int) -> None:
    """Bind all threads of a process to the proxies' core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), {PROXY_CORE})


@contextlib.contextmanager
def running(peer: Peer) -> Iterator[Peer]:
    """Stop a proxy after use."""
    try:
        yield peer
    finally:
        peer.process.send_signal(signal.SIGTERM)
        try:
            peer.process.wait(15)
        except subprocess.TimeoutExpired:
            peer.process.kill()
            peer.process.wait()


def direct(folder: Path, port: int, engine: int) -> Peer:
    """Stand in for no proxy at all."""
    return Peer("direct", engine, subprocess.Popen(["sleep", "infinity"]))


def nginx(folder: Path, port: int, engine: int) -> Peer:
    """Start nginx as a bare reverse proxy: the floor, it checks and counts nothing."""
    if shutil.which("nginx") is None:
        raise Missing("nginx is not installed")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    conf = folder / "nginx.conf"
    conf.write_text(NGINX.format(folder=folder, temporary=temporary, engine=engine, port=port))
    return launch("nginx", ["nginx", "-c", str(conf)], port, "/health")


@dataclass
class Ours:
    """Our gateway with everything on: key, caps, queue, session, usage record, metrics."""

    ledger: str
    url: str
    is_compiled: bool = True  # where it was built (gateway/compiled.py)
    secret: str = field(default_factory=lambda: keyformat.generate("interactive"))

    def __call__(self, folder: Path, port: int, engine: int) -> Peer:
        """Publish a directory and start the gateway."""
        self._publish(engine)
        program = ("-m", "gateway") if self.is_compiled else ("-c", INTERPRETED)
        peer = launch(
            f"fairway, {self.ledger} ledger", [sys.executable, *program], port, "/readyz",
            HOST="127.0.0.1", PORT=str(port), REDIS_URL=self.url, LEDGER=self.ledger,
            SECRET_KEY="of a benchmark, long enough for anybody", DATA_DIR=str(folder),
        )  # fmt: skip
        peer.secret = self.secret
        return peer

    def _publish(self, engine: int) -> None:
        caps = {"in_flight": 2000, "queued": 5000}
        counted = {"requests_per_minute": 10**8, "tokens_per_day": 10**11}
        limits = Limits(key={**caps, **counted}, person=caps)
        key = KeySnapshot(
            key_id="k1", name="bench", user_id="u1", user_name="bench", group_id="",
            service_class="interactive", state="live", expires_at=None,
            interactive=limits, batch=limits, version=1,
        )  # fmt: skip
        pool = PoolSnapshot("bench", queue_bound_interactive=5000)
        replica = ReplicaSnapshot(
            "r1",
            "r1",
            "bench",
            f"http://127.0.0.1:{engine}",
            "openai",
            2000,
            10**9,
            False,
            "active",
        )
        store = redis.Redis.from_url(self.url)
        store.flushall()
        with store.pipeline(transaction=True) as pipe:
            pipe.hset(
                published.KEYS, mapping={keyformat.digest(self.secret): published.to_json(key)}
            )
            pipe.hset(
                published.DIRECTORY,
                mapping={
                    "generation": "bench",
                    "version": "1",
                    "fleet": published.to_json(Fleet(1, (pool,), (replica,))),
                },
            )
            pipe.hset(USED, mapping={ZONE: "UTC"})
            pipe.execute()
        store.close()
