"""The official `openai` client, unmodified, in three major versions: what our users really run.

Each version has a virtual environment of its own, built once from hashed requirements and kept in
`tests/.cache`; scripts run in it as processes and answer with JSON on their last line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rig.seeding import CACHE, ROOT

VERSIONS = ("1", "2", "3")
PREAMBLE = """
import json, os, sys, time
import openai
given = json.loads(sys.argv[1])
client = openai.OpenAI(base_url=given["base_url"], api_key=given["api_key"],
                       max_retries=given.get("max_retries", 0), timeout=given.get("timeout", 60))
def answer(**facts):
    print(json.dumps(facts))
"""


@dataclass(frozen=True)
class Client:
    """One installed version of the client."""

    version: str
    python: Path

    def run(self, script: str, *, timeout_s: float = 90, **given: Any) -> dict[str, Any]:
        """Run `script` with `client`, `given` and `answer` at hand; return what it answered."""
        process = self.start(script, **given)
        out, err = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, f"client {self.version} failed:\n{err}\n{out}"
        found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return found

    def start(self, script: str, **given: Any) -> subprocess.Popen[str]:
        """Start `script`; several may run at once."""
        return subprocess.Popen(
            [self.python, "-c", PREAMBLE + textwrap.dedent(script), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        )


def environment(version: str) -> Client:
    """Return the client of a major version, installed on first use."""
    return Client(version, installed(f"openai-{version}"))


def installed(name: str) -> Path:
    """Return the Python of the environment that `tests/clients/<name>.txt` describes."""
    requirements = ROOT / "tests" / "clients" / f"{name}.txt"
    tag = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = CACHE / "clients" / f"{name}-{tag}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Runs at the same time build it once: the others wait here.
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            venv.create(folder, with_pip=False, clear=True)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq"]
            subprocess.run(
                [*pip, "--disable-pip-version-check", "--no-input", "--only-binary", ":all:",
                 "--require-hashes", "-r", str(requirements)],
                check=True,
            )  # fmt: skip
            (folder / "ready").touch()
    return python
