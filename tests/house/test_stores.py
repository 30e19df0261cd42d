"""The embedded stores on any folder: started, continued, refused, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
import redis

from portal import stores
from portal.stores import embedded, postgres
from portal.stores.errors import StoreError, from_log

HOLD = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from portal.stores import embedded\n"
    "with embedded.running(Path(sys.argv[1])) as both:\n"
    "    print(*(store.process.pid for store in both), flush=True)\n"
    "    time.sleep(600)\n"
)


def test_data_is_there_after_a_second_start_on_a_long_path_with_a_space(tmp_path: Path) -> None:
    """
    Both stores start on a path with a space and more than 100 characters, under which no socket
    fits, and a second start finds what the first one wrote.
    """
    folder = tmp_path / "a folder" / ("long" * 30)
    with embedded.running(folder) as (database, ledger):
        with psycopg.connect(database.url) as link:
            link.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        with redis.Redis.from_url(ledger.url) as client:
            client.set("kept", "42")

    with embedded.running(folder) as (database, ledger):
        with psycopg.connect(database.url) as link:
            assert link.execute("SELECT answer FROM kept").fetchone() == (42,)
        with redis.Redis.from_url(ledger.url) as client:
            assert client.get("kept") == b"42"


def test_sockets_can_be_entered_by_their_owner_only(tmp_path: Path) -> None:
    """The sockets' folder is closed to everybody else, because the stores ask for no password."""
    with embedded.running(tmp_path, durable=False):
        assert stores.run_dir(tmp_path).stat().st_mode & 0o777 == 0o700


def test_killed_owner_leaves_no_server_and_the_data_can_be_used_again(tmp_path: Path) -> None:
    """
    After kill -9 of the owner both servers end within five seconds, and the next start works,
    also while the old servers are still on their way out.
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    owner.kill()
    owner.wait()
    owner.stdout.close()

    killed_at = time.monotonic()
    with embedded.running(tmp_path) as (database, _), psycopg.connect(database.url) as link:
        assert link.execute("SELECT 1").fetchone() == (1,)
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < killed_at + 5, "a server outlived its killed owner"
        time.sleep(0.02)


def test_second_owner_is_refused_by_name(tmp_path: Path) -> None:
    """A data folder in use says which process uses it, and starts nothing twice."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()

    with (
        pytest.raises(StoreError, match=f"in use by process {holder.pid}"),
        embedded.running(tmp_path),
    ):
        pass
    holder.terminate()
    holder.wait()
    holder.stdout.close()


def test_pid_file_whose_number_belongs_to_another_program_is_cleared(tmp_path: Path) -> None:
    """A pid file left by a crash does not stop the next start when its number is taken again."""
    with embedded.running(tmp_path):
        pass
    (tmp_path / "pg" / "postmaster.pid").write_text("1\n")

    with embedded.running(tmp_path) as (database, _):
        assert database.process.poll() is None


def test_cluster_of_another_major_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """A data folder of another PostgreSQL names both versions instead of dying in a log."""
    with embedded.running(tmp_path, durable=False):
        pass
    (tmp_path / "pg" / "PG_VERSION").write_text("16\n")

    with pytest.raises(StoreError, match=r"made by PostgreSQL 16 and this is PostgreSQL \d+"):
        postgres.program(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another identity")
def test_root_whom_nothing_helps_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    Where a container forbids user namespaces and the user nobody cannot reach the folder, root
    gets one sentence with the two ways out.
    """
    monkeypatch.setattr(postgres, "_may_unshare", lambda: False)
    tmp_path.chmod(0o700)
    unreachable = tmp_path / "closed" / "data"
    unreachable.parent.mkdir(mode=0o700)

    with pytest.raises(StoreError, match="set DATABASE_URL or run as a normal user"):
        embedded.start_postgres(unreachable)


def test_full_disk_is_named(tmp_path: Path) -> None:
    """A store that finds no room says so, and where, instead of quoting its log."""
    log = tmp_path / "postgres.log"
    log.write_text("FATAL:  could not write lock file: No space left on device\n")

    assert "is full" in str(from_log("PostgreSQL", log))
