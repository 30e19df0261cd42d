"""`manage.py up` as a newcomer meets it: real stores, the real demo engine, the printed request."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import ROOT
from tests.rig.product import Product, descendants
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.journey


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    """An installation of its own that nobody has started."""
    one = Product(folder=tmp_path / "a folder with a space" / ("long" * 20), engine_url="")
    yield one
    one.stop()


def greeting(product: Product, start: int) -> str:
    """Return what was printed when everything was up for the `start`th time."""
    end = "Ctrl-C stops everything"
    wait_until(lambda: product.output.count(end) == start, 90, "it says that it is up")
    return product.output.rpartition("Fairway is up")[2]


def test_first_start_prints_a_request_that_works_and_the_second_keeps_the_data(
    product: Product,
) -> None:
    """
    The first start prints a password once and a curl command that streams an answer of the real
    model; Ctrl-C ends every process; the next start knows the people and prints no secret.
    """
    product.start()
    first = greeting(product, 1)
    assert re.search(r"Sign in as admin with the password \S{16}\n", first)
    command = re.search(r"^curl .*?\}'$", first, re.DOTALL | re.MULTILINE)
    assert command is not None

    said = subprocess.run(["bash", "-c", command[0]], capture_output=True, text=True).stdout

    events = [line.removeprefix("data: ") for line in said.splitlines() if line.startswith("data:")]
    assert events[-1] == "[DONE]"
    texts = [json.loads(event)["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert "".join(text or "" for text in texts).strip()

    assert product.process is not None
    below = [process.pid for process in descendants(product.process.pid)]
    product.process.send_signal(signal.SIGINT)
    assert product.process.wait(40) == 0
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []

    product.start()
    second = greeting(product, 2)
    assert "password" not in second.replace("changepassword", "")
    assert "fw_int_" not in second
    assert product.sql("SELECT count(*) FROM quotas_user WHERE username = 'admin'") == [(1,)]


def test_taken_port_is_one_sentence_and_starts_nothing(tmp_path: Path) -> None:
    """A port that another program has ends the start with one sentence that offers another."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        product = Product(folder=tmp_path, engine_url="", port=other.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "manage.py", "up"],
            cwd=ROOT,
            env=product.environment,
            capture_output=True,
            text=True,
        )

    assert done.returncode == 1
    assert re.fullmatch(
        rf"CommandError: Port {product.port} on 127.0.0.1 is taken .* make up\.\n", done.stderr
    )
    assert not (product.data_dir / "pg").exists()
