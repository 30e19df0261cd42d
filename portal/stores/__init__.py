"""Where the embedded PostgreSQL and Valkey live: addresses and folders, nothing that runs.

Settings import this module, so importing it starts nothing and loads no database library;
`portal.stores.embedded` runs the servers.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

from django.core.exceptions import ImproperlyConfigured

SOCKET_PATH_LIMIT = 100  # Linux allows 107 bytes, macOS 103
# The same for every shell of a user, whatever TMPDIR says; `private_folder` refuses one that
# somebody else made first.
SHORT_PARENT = Path("/tmp")  # noqa: S108


def run_dir(data_dir: Path) -> Path:
    """Return the sockets' folder: inside `data_dir`, or a short one when that path will not do.

    Too long for a socket is one reason; the other is a space or comma, which the several
    libraries that read these addresses each take differently.
    """
    inside = data_dir / "run"
    plain = re.fullmatch(r"[\w./-]+", str(inside), re.ASCII) is not None
    if plain and len(os.fsencode(inside / ".s.PGSQL.5432")) <= SOCKET_PATH_LIMIT:
        return inside
    tag = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return SHORT_PARENT / f"fairway-{os.getuid()}-{tag}"


def data_folder(path: Path) -> Path:
    """Make the data folder; one that is there already keeps the rights its owner gave it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def private_folder(path: Path, *, user: str | None = None) -> Path:
    """Make a folder of ours that only we (or `user`, when we are root) can enter, or fail."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if path.is_symlink() or os.getuid() not in {0, status.st_uid}:
        raise PermissionError(f"{path} belongs to somebody else: remove it, or change DATA_DIR")
    path.chmod(0o700)
    if user is not None:
        shutil.chown(path, user)
    return path


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
    try:
        if not path.exists():
            _write_once(data_folder(data_dir), path, secrets.token_urlsafe(48))
        return path.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(
            f"DATA_DIR {data_dir} cannot be used ({error.strerror}): "
            "set it to a folder that you may write to."
        ) from None


def _write_once(folder: Path, path: Path, text: str) -> None:
    """Write the whole file or nothing; of two processes that try, the first one wins."""
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()
