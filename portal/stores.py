"""Embedded PostgreSQL and Valkey: where they live, and (soon) how they run."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from pathlib import Path
from urllib.parse import quote, urlsplit

SOCKET_PATH_LIMIT = 100  # Linux allows 107 bytes, macOS 103


def run_dir(data_dir: Path) -> Path:
    """Return the sockets' folder: inside `data_dir`, or a short one when that path is too long."""
    inside = data_dir / "run"
    if len(os.fsencode(inside / ".s.PGSQL.5432")) <= SOCKET_PATH_LIMIT:
        return inside
    tag = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"fairway-{os.getuid()}-{tag}"


def postgres_url(data_dir: Path) -> str:
    """Return the address of the embedded PostgreSQL."""
    return f"postgres://fairway@/fairway?host={quote(str(run_dir(data_dir)), safe='')}"


def valkey_url(data_dir: Path) -> str:
    """Return the address of the embedded Valkey."""
    return f"unix://{quote(str(run_dir(data_dir) / 'valkey.sock'))}?db=0"


def celery_url(redis_url: str) -> str:
    """Spell a redis-py address the way Celery's transport wants it."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    query = parts.query.replace("db=", "virtual_host=") or "virtual_host=0"
    return f"redis+socket://{parts.path}?{query}"


def secret_key(data_dir: Path) -> str:
    """Return this installation's signing key, made once and readable by its owner only."""
    path = data_dir / "secret_key"
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(48))
    return path.read_text().strip()
