"""A gateway process with a directory written by hand, so that these tests need no database."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis

from gateway.charges import COUNTED
from portal.processes import die_with_parent
from quotas.snapshots import directory as published
from quotas.snapshots import keyformat
from quotas.snapshots.counters import USED, ZONE
from quotas.snapshots.credentials import Credential, sign
from quotas.snapshots.directory import Fleet, KeySnapshot, Limits, PoolSnapshot, ReplicaSnapshot
from quotas.snapshots.usage import STREAM, UsageRecord, record_from_json
from tests.rig.network import free_port
from tests.rig.seeding import ROOT
from tests.rig.waiting import wait_until

LIMITS = (*COUNTED, "in_flight", "queued", "max_output_tokens", "max_prompt_tokens")
SECRET_KEY = "a secret key for the wire tests, long enough"


@dataclass
class Books:
    """Publishes keys and engines the way quotas does."""

    redis: redis.Redis
    version: int = 0
    pools: tuple[PoolSnapshot, ...] = ()
    replicas: tuple[ReplicaSnapshot, ...] = ()
    keys: dict[str, KeySnapshot] = field(default_factory=dict)
    generation: str = "one"
    zone: str = "UTC"
    used: dict[str, int] = field(default_factory=dict)

    def publish(self) -> None:
        """Write everything in one transaction."""
        self.version += 1
        fleet = Fleet(self.version, self.pools, self.replicas)
        keys = {
            digest: published.to_json(dataclasses.replace(key, version=self.version))
            for digest, key in self.keys.items()
        }
        with self.redis.pipeline(transaction=True) as pipe:
            pipe.delete(published.KEYS)
            if keys:
                pipe.hset(published.KEYS, mapping=keys)
            pipe.hset(
                published.DIRECTORY,
                mapping={
                    "generation": self.generation,
                    "version": str(self.version),
                    "fleet": published.to_json(fleet),
                },
            )
            pipe.hset(USED, mapping={ZONE: self.zone, **self.used})
            pipe.publish(published.CHANGED, str(self.version))
            pipe.execute()

    def engine(
        self, url: str, *, pool: str = "witness", kind: str = "vllm", slots: int = 4, **rest: Any
    ) -> None:
        """Register one more replica."""
        name = f"r{len(self.replicas) + 1}"
        self.replicas += (
            ReplicaSnapshot(
                name, name, pool, url, kind, slots, 16384, kind == "vllm", "active", "", **rest
            ),
        )
        if pool not in {p.name for p in self.pools}:
            self.pools += (PoolSnapshot(pool),)
        self.publish()

    def key(self, name: str = "alice", service_class: str = "interactive", **changes: Any) -> str:
        """Make a key and return its secret; `in_flight` and the like set its limits."""
        secret = keyformat.generate(service_class)
        of_key = {limit: changes.pop(limit) for limit in LIMITS if limit in changes}
        models = changes.pop("allowed_models", None)
        of_person = changes.pop("person", {})
        of_group = changes.pop("group", {})
        limits = Limits(key=of_key, person=of_person, group=of_group, allowed_models=models)
        changes = {"state": "live", "expires_at": None, "group_id": "g1"} | changes
        self.keys[keyformat.digest(secret)] = KeySnapshot(
            key_id=f"k{len(self.keys) + 1}", name=name, user_id=f"u-{name}", user_name=name,
            service_class=service_class,
            interactive=limits, batch=limits, masked=keyformat.masked(secret), **changes,
        )  # fmt: skip
        self.publish()
        return secret

    def change(self, secret: str, **changes: Any) -> None:
        """Edit a key."""
        digest = keyformat.digest(secret)
        self.keys[digest] = dataclasses.replace(self.keys[digest], **changes)
        self.publish()

    def records(self) -> list[UsageRecord]:
        """Return every usage record appended so far."""
        entries: Any = self.redis.xrange(STREAM)
        return [record_from_json(fields[b"r"]) for _, fields in entries]

    def record_of(self, request_id: str) -> UsageRecord:
        """Wait for the record of a request."""
        found: list[UsageRecord] = []

        def look() -> bool:
            found[:] = [r for r in self.records() if r.request_id == request_id]
            return bool(found)

        wait_until(look, 6, f"a usage record for {request_id}", every_s=0.03)
        assert len(found) == 1
        return found[0]


@dataclass
class GatewayProcess:
    """`python -m gateway`."""

    folder: Path
    redis_url: str
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> GatewayProcess:
        """Start it and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "REDIS_URL": self.redis_url,
            "SECRET_KEY": SECRET_KEY,
            "LEDGER": "memory",
            "TEST_CLOCK": "1",
            "PORTAL_SOCKET": str(self.folder / "portal.sock"),
            **self.settings,
        }
        with (self.folder / f"gateway-{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway"],
                cwd=ROOT, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip
        wait_until(self._listens, 60, "the gateway listens", every_s=0.05)
        return self

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the gateway ended: {self.log}"
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def log(self) -> str:
        """Return what it has logged."""
        return (self.folder / f"gateway-{self.port}.log").read_text(errors="replace")

    @property
    def memory_kib(self) -> int:
        """Return its resident memory."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def live(self) -> dict[str, Any]:
        """Return the picture of this moment."""
        bearer = sign(SECRET_KEY, Credential("live", "", time.time() + 60))
        headers = {"authorization": f"Bearer {bearer}"}
        answer = httpx.get(f"{self.url}/internal/live", headers=headers, timeout=10)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def connect(self, secret: str, body: dict[str, Any]) -> socket.socket:
        """Send a chat request over a bare socket, which may be closed at any moment."""
        raw = json.dumps(body).encode()
        link = socket.create_connection(("127.0.0.1", self.port), 10)
        link.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        return link

    def wait_settled(self, within_s: float = 5.0) -> None:
        """Wait until nobody runs and nobody waits."""

        def settled() -> bool:
            live = self.live()
            return not live["running"] and not live["queued"]

        wait_until(settled, within_s, "all slots are free again", every_s=0.05)

    def wait_up(self, replicas: int = 1) -> None:
        """Wait until the engines are seen."""

        def up() -> bool:
            engines = self.live()["engines"]
            good = [engine for engine in engines if engine["state"] in ("up", "busy")]
            return len(good) >= replicas

        wait_until(up, 10, f"{replicas} engines up", every_s=0.05)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it and return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(40)
        finally:
            if self.process.poll() is None:
                self.process.kill()


def bearer(secret: str) -> dict[str, str]:
    """Return the header that shows a key."""
    return {"authorization": f"Bearer {secret}"}


def chat(text: str = "hello there", model: str = "witness", **rest: Any) -> dict[str, Any]:
    """Return a chat body."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **rest}
