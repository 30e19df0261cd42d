"""A small HTTP server that answers `GET /internal/live` with what a test tells it.

It checks the service credential as the gateway does, so a portal that signs wrongly is found.
"""

from __future__ import annotations

import dataclasses
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from quotas.snapshots import credentials
from quotas.snapshots.live import EngineLive, Live, QueuedLive, RunningLive
from tests.rig.serving import serve


def engine(name: str = "atlas", **changes: Any) -> EngineLive:
    """Return an engine that is up, heard this second, with eight slots."""
    fields: dict[str, Any] = {
        "replica_id": f"rep_{name}",
        "name": name,
        "pool": "Qwen2.5-14B",
        "kind": "vllm",
        "state": "up",
        "seen_at": time.time(),
        "slots": 8,
        "held_interactive": 0,
        "held_batch": 0,
        "engine_running": 0,
        "engine_waiting": 0,
        "kv_usage": 0.61,
        "prompt_tokens_total": 10,
        "completion_tokens_total": 10,
        "prefix_hit_rate": None,
        "tokens_out_per_s": 196.0,
        "tokens_in_per_s": 940.0,
    }
    return EngineLive(**{**fields, **changes})


def queued(
    user: str, service_class: str, position: int, queued_s: float, **changes: Any
) -> QueuedLive:
    """Return a waiting request of one person."""
    handicap = 600.0 if service_class == "batch" else 0.0
    fields: dict[str, Any] = {
        "ticket_id": f"req_{user}_{position}",
        "key_id": f"key_{user}",
        "user_id": user,
        "service_class": service_class,
        "pool": "Qwen2.5-14B",
        "position": position,
        "queued_s": queued_s,
        "effective_priority_s": queued_s - handicap,
        "blocker": "slots",
        "expected_wait_s": 2.0 * position,
    }
    return QueuedLive(**{**fields, **changes})


def running(user: str, service_class: str, running_s: float, **changes: Any) -> RunningLive:
    """Return a request in flight on atlas."""
    fields: dict[str, Any] = {
        "ticket_id": f"run_{user}_{running_s}",
        "key_id": f"key_{user}",
        "user_id": user,
        "service_class": service_class,
        "pool": "Qwen2.5-14B",
        "replica_id": "rep_atlas",
        "weight": 1,
        "running_s": running_s,
    }
    return RunningLive(**{**fields, **changes})


def live(**changes: Any) -> Live:
    """Return a moment with one idle engine."""
    fields: dict[str, Any] = {
        "at": time.time(),
        "open": True,
        "engines": (engine(),),
        "queued": (),
        "running": (),
        "expected_wait_s": {"Qwen2.5-14B": {"interactive": 0.0, "batch": 0.0}},
        "batch_limit": {"Qwen2.5-14B": 2},
        "borrowed": {"Qwen2.5-14B": False},
        "ledger": "ok",
    }
    return Live(**{**fields, **changes})


def busy(me: str = "2") -> Live:
    """Return a full card with eight waiting, three of them mine."""
    return live(
        engines=(
            engine(state="busy", held_interactive=7, held_batch=1, engine_running=8),
            engine("quill", pool="SmolLM2-1.7B", kind="llamacpp", slots=4, kv_usage=0.09,
                   tokens_out_per_s=71.0, tokens_in_per_s=12.0),
        ),
        queued=(
            queued("h", "batch", 1, 645),
            queued("f", "interactive", 2, 9),
            queued(me, "interactive", 3, 4),
            queued("g", "interactive", 4, 1),
            queued("h", "batch", 5, 560, expected_wait_s=50.0),
            queued(me, "batch", 6, 390, expected_wait_s=240.0),
            queued(me, "batch", 7, 190, expected_wait_s=420.0),
            queued("k", "batch", 8, 40, expected_wait_s=600.0),
        ),
        running=(
            *(running(user, "interactive", s) for user, s in
              (("a", 41), ("a", 12), (me, 27), ("c", 3), ("c", 18), ("d", 9), ("e", 24))),
            running("h", "batch", 112),
        ),
        expected_wait_s={"Qwen2.5-14B": {"interactive": 9.0, "batch": 600.0},
                         "SmolLM2-1.7B": {"interactive": 0.0, "batch": 0.0}},
        batch_limit={"Qwen2.5-14B": 2, "SmolLM2-1.7B": 1},
        borrowed={"Qwen2.5-14B": False, "SmolLM2-1.7B": False},
    )  # fmt: skip


def unknown() -> Live:
    """Return a moment in which the engine has been silent for three minutes."""
    moment = busy()
    silent = engine(state="suspect", seen_at=time.time() - 188, note="connects, does not answer")
    return dataclasses.replace(moment, engines=(silent, moment.engines[1]), running=())


class ScriptedGateway:
    """Serves one `Live`; None answers 500."""

    def __init__(self, secret_key: str) -> None:
        self.live: Live | None = live()
        self.asked = 0
        self.stopped: list[tuple[str, str | None]] = []  # request, and for whom it was asked
        self.used: dict[str, int] = {}  # limit -> what is used of it
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                gateway.asked += 1
                bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
                credential = credentials.verify(secret_key, bearer, time.time())
                assert credential.scope == "live"
                now = gateway.live
                body = json.dumps(dataclasses.asdict(now) if now else {}).encode()
                self.send_response(500 if now is None else 200 if now.queue_known else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
                assert credentials.verify(secret_key, bearer, time.time()).scope == "live"
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stops = self.path == "/internal/stop"
                status, found = gateway._stop(asked) if stops else gateway._quotas(asked)
                body = json.dumps(found).encode()
                self.send_response(status if gateway.live else 500)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = serve(self._server)

    def _quotas(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        quotas = [
            {**one, "used": self.used.get(one["name"], 0), "resets_at": 1_800_000_000}
            for one in asked["limits"]
        ]
        return 200, {"at": time.time(), "quotas": quotas}

    def _stop(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Answer as the gateway does: 404 unless it is that person's, or an administrator asks."""
        assert self.live is not None
        tickets = (*self.live.running, *self.live.queued)
        owners = {t.ticket_id: t.user_id.partition("/")[0] for t in tickets}
        owner = owners.get(asked["request_id"])
        if owner is None or asked["user_id"] not in (None, owner):
            return 404, {"error": {"code": "not_found"}}
        self.stopped.append((asked["request_id"], asked["user_id"]))
        return 202, {"asked": True}

    def stop(self) -> None:
        """Close the port and wait for the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
