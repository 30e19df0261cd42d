"""The gateway's settings: read once from the environment, frozen, wrong values end the start.

Every name read here has a row in docs/settings.md.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_SOCKET_PATH_LIMIT = 100
AGE_HANDICAP_S = 600  # batch stands this much behind; see docs/scheduler.md


class BadSetting(Exception):
    """A setting has a value that cannot be used."""


class Environment:
    """Typed readers over one mapping of names to texts."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """Read a text."""
        return self._values.get(name, default)

    def integer(self, name: str, default: int, *, low: int = 0, high: int = 2**31) -> int:
        """Read a whole number within its bounds."""
        raw = self._values.get(name) or str(default)
        try:
            value = int(raw)
        except ValueError:
            raise BadSetting(f"{name} must be a whole number, not {raw!r}") from None
        if not low <= value <= high:
            raise BadSetting(f"{name} must be from {low} to {high}, not {value}")
        return value

    def boolean(self, name: str, *, default: bool = False) -> bool:
        """Read yes or no."""
        raw = self._values.get(name)
        if raw is None:
            return default
        value = raw.strip().lower()
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise BadSetting(f"{name} must be 1 or 0, not {raw!r}")

    def names(self, name: str, default: str = "") -> frozenset[str]:
        """Read a comma-separated list."""
        raw = self._values.get(name, default)
        return frozenset(part.strip() for part in raw.split(",") if part.strip())

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """Read one of a few words."""
        value = self._values.get(name) or default
        if value not in choices:
            raise BadSetting(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the gateway can be told."""

    host: str
    port: int
    fd: int | None
    redis_url: str
    secret_key: str
    portal_socket: str
    ledger: str
    test_clock: bool
    process_name: str
    processes: int
    metrics_allow: frozenset[str]
    trusted_proxies: frozenset[str]
    media_hosts: frozenset[str]
    extra_fields: frozenset[str]
    cache_salt: str
    engine_hosts: frozenset[str]
    engine_url: str  # trusted wherever it is
    body_limit: int
    portal_body_limit: int
    embedding_inputs: int
    ttl_interactive_s: int
    ttl_batch_s: int
    hold_s: int
    comment_every_s: int
    keepalive_plain: bool
    first_byte_s: int
    idle_stream_s: int
    total_s: int
    stall_s: int
    drain_s: int
    stream_buffer: int
    process_buffer: int
    log_level: str
    metrics_dir: str

    @classmethod
    def from_environment(cls, values: Mapping[str, str] | None = None) -> Config:
        """Read the environment or say which setting is wrong."""
        env = Environment(os.environ if values is None else values)
        data_dir = Path(env.text("DATA_DIR", "var")).resolve()
        run_dir = _run_dir(data_dir)
        fd = env.text("GATEWAY_FD")
        config = cls(
            host=env.text("HOST", "127.0.0.1"),
            port=env.integer("PORT", 8000, high=65535),
            fd=env.integer("GATEWAY_FD", 0) if fd else None,
            redis_url=env.text("REDIS_URL") or f"unix://{run_dir / 'valkey.sock'}?db=0",
            secret_key=env.text("SECRET_KEY") or _secret_key(data_dir),
            portal_socket=env.text("PORTAL_SOCKET") or str(run_dir / "portal.sock"),
            ledger=env.choice("LEDGER", "redis", ("memory", "redis")),
            test_clock=env.boolean("TEST_CLOCK"),
            process_name=env.text("GATEWAY_NAME") or f"{socket.gethostname()}-{os.getpid()}",
            processes=env.integer("GATEWAY_PROCESSES", 1, low=1),
            metrics_allow=env.names("METRICS_ALLOW"),
            trusted_proxies=env.names("TRUSTED_PROXIES"),
            media_hosts=frozenset(h.lower() for h in env.names("ALLOWED_MEDIA_HOSTS")),
            extra_fields=env.names("EXTRA_FIELDS"),
            cache_salt=env.choice("CACHE_SALT", "group", ("off", "group", "user")),
            engine_hosts=env.names("ENGINE_HOSTS"),
            engine_url=env.text("ENGINE_URL"),
            **_of_requests(env),
            log_level=env.choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
            metrics_dir=env.text("PROMETHEUS_MULTIPROC_DIR"),
        )
        config._check(production=env.text("PORTAL_ENV") == "production")
        return config

    def _check(self, *, production: bool) -> None:
        if self.ttl_batch_s <= AGE_HANDICAP_S:
            raise BadSetting(
                f"QUEUE_TTL_BATCH_S must exceed {AGE_HANDICAP_S}: a batch request would leave "
                "the queue before its age can win"
            )
        if production and self.test_clock:
            raise BadSetting("TEST_CLOCK must not be set in production")


def _of_requests(env: Environment) -> dict[str, Any]:
    """Read what bounds a request: its size, its waits and its buffers."""
    return {
        "body_limit": env.integer("BODY_LIMIT_MIB", 32, low=1) << 20,
        "portal_body_limit": (env.integer("FILE_LIMIT_MIB", 200, low=1) + 1) << 20,
        "embedding_inputs": env.integer("EMBEDDING_INPUTS", 2048, low=1),
        "ttl_interactive_s": env.integer("QUEUE_TTL_INTERACTIVE_S", 60, low=1),
        "ttl_batch_s": env.integer("QUEUE_TTL_BATCH_S", 3600, low=1),
        "hold_s": env.integer("HOLD_S", 10),
        "comment_every_s": env.integer("COMMENT_EVERY_S", 15, low=1),
        "keepalive_plain": env.boolean("KEEPALIVE_PLAIN"),
        "first_byte_s": env.integer("FIRST_BYTE_S", 300, low=1),
        "idle_stream_s": env.integer("IDLE_STREAM_S", 120, low=1),
        "total_s": env.integer("TOTAL_S", 3600, low=1),
        "stall_s": env.integer("CLIENT_STALL_S", 60, low=1),
        "drain_s": env.integer("DRAIN_S", 30),
        "stream_buffer": env.integer("STREAM_BUFFER_KIB", 256, low=16) << 10,
        "process_buffer": env.integer("PROCESS_BUFFER_MIB", 64, low=1) << 20,
    }


def _run_dir(data_dir: Path) -> Path:
    """Return the folder of the sockets; the same rule as the portal's store runner follows."""
    inside = data_dir / "run"
    if len(os.fsencode(inside / ".s.PGSQL.5432")) <= _SOCKET_PATH_LIMIT:
        return inside
    tag = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"fairway-{os.getuid()}-{tag}"


def _secret_key(data_dir: Path) -> str:
    path = data_dir / "secret_key"
    if not path.exists():
        raise BadSetting("SECRET_KEY is not set and DATA_DIR holds no secret_key file")
    return path.read_text().strip()
