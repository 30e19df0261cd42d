"""The container setup, as far as it can be shown without a container engine.

No image is built here: the files are read, and every command and health check in them is run in
this environment.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer, UnixStreamServer
from typing import Any

import pytest
import yaml

from gateway import compiled
from portal import programs
from tests.house.source import ROOT
from tests.rig.serving import serve

PROGRAMS = {
    "portal": programs.portal,
    "worker": programs.worker,
    "beat": programs.beat,
    "usage": programs.usage_writer,
    "gateway": lambda: programs.gateway(1, 3),
}


@cache
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    return loaded


@cache
def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions and what they are given, long lines joined, comments left out."""
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)
    ]


def given(instruction: str) -> list[str]:
    return [rest for word, rest in dockerfile() if word == instruction]


def ours() -> dict[str, dict[str, Any]]:
    return {n: s for n, s in compose()["services"].items() if s.get("image") == "fairway"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_service_runs_the_command_of_make_up(name: str) -> None:
    """A container runs the same command line as the supervisor; only paths differ."""

    def plain(argv: list[str]) -> list[str]:
        short = [re.sub(r".*/(manage\.py|portal\.sock)$", r"\1", part) for part in argv]
        return ["python", *short[1:]]

    assert plain(ours()[name]["command"]) == plain(list(PROGRAMS[name]().argv))


@pytest.mark.parametrize("name", sorted({*PROGRAMS, "prepare"}))
def test_command_exists_here(name: str) -> None:
    """Each command is one that this environment knows, with every module it names."""
    argv = [sys.executable, *ours()[name]["command"][1:]]
    if argv[1] == "manage.py":
        argv = [*argv[:3], "--help"]
    elif "celery" in argv:
        argv = [*argv[: argv.index("portal") + 2], "--help"]
    else:
        argv = [*argv[:3], "--help"]

    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_services_wait_for_stores_and_tables() -> None:
    """Nothing of ours starts before the stores are healthy and the tables are prepared."""
    waits = ours()["prepare"]["depends_on"]
    assert {waits[name]["condition"] for name in ("postgres", "redis")} == {"service_healthy"}
    for name in PROGRAMS:
        assert ours()[name]["depends_on"] == {
            "prepare": {"condition": "service_completed_successfully"}
        }


def test_redis_never_evicts() -> None:
    """A store that forgets under pressure would let everybody in."""
    command = compose()["services"]["redis"]["command"]

    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_image_brings_compiled_modules_to_where_they_are_looked_for() -> None:
    """What its own stage compiles lies in the last stage at the gateway's place for it."""
    place = compiled.HOME.relative_to(ROOT)

    assert f"--from=compiled /opt/fairway/{place} {place}" in given("COPY")
    assert ".venv/bin/python -m gateway.compiled" in given("RUN")


def test_image_runs_as_a_user_and_is_made_of_files_that_exist() -> None:
    """The last stage gives up root, says how it is, and copies only what is in the repository."""
    assert given("USER")[-1] not in {"root", "0"}
    assert dockerfile().index(("USER", given("USER")[-1])) > dockerfile().index(
        ("COPY", "templates templates")
    )
    sources = [shlex.split(rest)[0] for rest in given("COPY") if not rest.startswith("--from")]
    assert [name for name in sources if not (ROOT / name).exists()] == []
    (check,) = given("HEALTHCHECK")
    assert check.endswith('CMD ["python", "-m", "portal.health", "gateway"]')


def test_every_variable_of_the_files_is_a_setting() -> None:
    """No container is given a variable that nobody reads."""
    documented = set(
        re.findall(r"^\| `([A-Z0-9_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
    )
    given_env = {n for s in ours().values() for n in s["environment"]}
    image = set(re.findall(r"\b([A-Z_]+)=", " ".join(given("ENV"))))

    assert given_env | image <= documented | {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}


class Answer(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "socket"


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1)])
def test_health_check_of_the_gateway(status: int, expected: int) -> None:
    """The check ends with 0 exactly when the gateway says 200."""
    handler = type("Handler", (Answer,), {"status": status})
    with ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        serve(server)
        env = {**os.environ, "HOST": "0.0.0.0", "PORT": str(server.server_address[1])}
        argv = [sys.executable, *compose()["services"]["gateway"]["healthcheck"]["test"][2:]]

        assert subprocess.run(argv, cwd=ROOT, env=env).returncode == expected
        server.shutdown()


def test_health_check_of_the_portal_goes_over_its_socket(tmp_path: Path) -> None:
    """The portal's check speaks HTTP over the private socket, and a missing one is unhealthy."""
    path = str(tmp_path / "p.sock")
    env = {**os.environ, "PORTAL_SOCKET": path, "PUBLIC_URL": "https://fairway.example"}
    argv = [sys.executable, *compose()["services"]["portal"]["healthcheck"]["test"][2:]]
    assert subprocess.run(argv, cwd=ROOT, env=env).returncode == 1

    with UnixStreamServer(path, Answer) as server:
        serve(server)
        assert subprocess.run(argv, cwd=ROOT, env=env).returncode == 0
        server.shutdown()
