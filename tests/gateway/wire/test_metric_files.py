"""Several gateways add up their metrics in a folder; the dead do not count as running."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from gateway.metric_files import KINDS, ROOM, prepare, tidy
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import GatewayProcess, chat
from tests.rig.engine_script import Script
from tests.rig.waiting import wait_until

DEAD = 4_194_305  # above any number a process can have


def figure(gateway: GatewayProcess, name: str) -> float:
    """Return the sum of a metric over its labels."""
    page = httpx.get(f"{gateway.url}/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))


def names(folder: Path) -> set[str]:
    """Return the files of a folder but for its lock."""
    return {path.name for path in folder.iterdir()} - {"lock"}


def test_what_the_dead_had_counted_stays_while_others_live(tmp_path: Path) -> None:
    """Beside a living gateway only what a dead one was doing goes; alone everything goes."""
    living = subprocess.Popen([sys.executable, "-c", "input()", "gateway"], stdin=subprocess.PIPE)
    cmdline = Path(f"/proc/{living.pid}/cmdline")
    wait_until(lambda: b"input()" in cmdline.read_bytes(), 10, "it has begun")
    for name in ("counter", "gauge_livesum", "gauge_all"):
        for pid in (DEAD, living.pid):
            (tmp_path / f"{name}_{pid}.db").touch()
    (tmp_path / "notes").touch()

    tidy(tmp_path, own=1)
    beside = names(tmp_path)
    living.communicate(b"end")
    tidy(tmp_path, own=1)

    stays = {f"{name}_{living.pid}.db" for name in ("counter", "gauge_livesum", "gauge_all")}
    assert beside == stays | {f"counter_{DEAD}.db", f"gauge_all_{DEAD}.db", "notes"}
    assert names(tmp_path) == {"notes"}


def test_the_files_are_whole_from_the_start(tmp_path: Path) -> None:
    """Every kind of file has its room on the disk before it is used; without room we are told."""
    assert prepare(tmp_path, own=7)
    sizes = {path.name: path.stat().st_blocks * 512 for path in tmp_path.glob("*.db")}

    assert {f"{kind}_7.db" for kind in KINDS} == sizes.keys()
    assert min(sizes.values()) >= ROOM
    assert not prepare(tmp_path / "missing", own=7)


def test_a_killed_gateway_leaves_no_running_requests(make_gateway: Callable[..., Stage]) -> None:
    """
    kill -9 with a stream running: from the next start on nothing counts as running, counters have
    not fallen, and when all have ended the next one finds an empty folder.
    """
    stage = make_gateway(Script(slots=4, decode_tps=20, tokens=400))
    folder = stage.gateway.folder / "metrics"
    folder.mkdir()
    settings = {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
    first, second = (
        GatewayProcess(stage.gateway.folder, stage.gateway.redis_url, settings) for _ in range(2)
    )
    secret = stage.books.key(in_flight=4)
    try:
        for gateway in (first, second):
            gateway.start()
            gateway.wait_up()
        served = Stage(first, stage.books, stage.witness).ask(secret, max_tokens=1)
        assert served.status_code == 200
        link = first.connect(secret, chat(stream=True, max_tokens=300))
        # What is counted goes where others see it twice a second; a kill loses what has not yet.
        wait_until(lambda: figure(second, "fairway_requests_total") == 1, 5, "one is counted")
        wait_until(lambda: figure(second, "fairway_live_requests") == 1, 5, "one runs")
        first.stop(signal.SIGKILL)
        link.close()
        assert figure(second, "fairway_live_requests") == 1  # nobody has tidied up yet
        first.start()
        assert figure(second, "fairway_live_requests") == 0
        assert figure(first, "fairway_requests_total") == 1
    finally:
        first.stop(signal.SIGKILL)
        second.stop(signal.SIGKILL)
    second.start()
    try:
        assert second.process is not None
        assert {re.findall(r"\d+", name)[-1] for name in names(folder)} == {str(second.process.pid)}
        assert figure(second, "fairway_requests_total") == 0
    finally:
        second.stop()
