"""Starts and stops both embedded stores for one owner.

`make up` has its supervisor run the programs; tests and single commands use `running`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from portal import processes
from portal.processes import Program
from portal.stores import data_folder, postgres, postgres_url, valkey, valkey_url
from portal.stores.errors import StoreError, from_log

READY_S = 60.0


@dataclass(frozen=True)
class Store:
    """One running store."""

    program: Program
    process: subprocess.Popen[bytes]
    url: str

    def stop(self) -> None:
        """Stop it cleanly, or by force when it does not listen."""
        processes.stop(self.program, self.process)


@contextmanager
def owned(data_dir: Path) -> Iterator[None]:
    """Hold the data folder for this process; the kernel lets go of it however we end."""
    path = data_folder(data_dir) / "owner.lock"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{data_dir} is in use by process {file.read().strip() or 'unknown'}: "
                "stop that one first, or set DATA_DIR to another folder."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def start_postgres(data_dir: Path, *, durable: bool = True) -> Store:
    """Start PostgreSQL on `data_dir` and return once our database can be used."""
    return _start(
        postgres.program(data_dir, durable=durable),
        data_dir / "postgres.log",
        ready=lambda: postgres.is_ready(data_dir),
        url=postgres_url(data_dir),
    )


def start_valkey(data_dir: Path, *, durable: bool = True) -> Store:
    """Start Valkey on `data_dir` and return once it answers."""
    return _start(
        valkey.program(data_dir, durable=durable),
        data_dir / "valkey.log",
        ready=lambda: valkey.is_ready(data_dir),
        url=valkey_url(data_dir),
    )


@contextmanager
def running(data_dir: Path, *, durable: bool = True) -> Iterator[tuple[Store, Store]]:
    """Run PostgreSQL and Valkey for the length of a `with` block."""
    with owned(data_dir):
        database = start_postgres(data_dir, durable=durable)
        try:
            ledger = start_valkey(data_dir, durable=durable)
            try:
                yield database, ledger
            finally:
                ledger.stop()
        finally:
            database.stop()


def _start(program: Program, log: Path, *, ready: Callable[[], bool], url: str) -> Store:
    with log.open("wb") as output:
        process = processes.spawn(program, output)
    give_up = time.monotonic() + READY_S
    while not ready():
        if process.poll() is not None:
            raise from_log(program.name, log)
        if time.monotonic() > give_up:
            processes.stop(program, process)
            raise StoreError(
                f"{program.name} did not answer within {READY_S:.0f} seconds; its log is {log}."
            )
        time.sleep(0.05)
    return Store(program, process, url)
