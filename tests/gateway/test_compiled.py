"""The gateway's modules as machine code: the same source, the same answers."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import compiled
from tests.bench import rig
from tests.bench.peers import Ours, running
from tests.rig.network import free_port
from tests.rig.seeding import ROOT

FEW = ("core/events", "core/sharing")
# Splits a stream cut at every place, and says from which file the splitter came.
SPLIT = """
import sys
from pathlib import Path
from gateway import compiled
used = compiled.use(Path(sys.argv[1]))
from gateway.core import events, sharing
text = b"data: a\\n\\n: c\\r\\n\\r\\ndata: \\xc3\\xa4\\r\\rdata: end"
for cut in range(len(text)):
    splitter = events.EventSplitter()
    print(splitter.feed(text[:cut]) + splitter.feed(text[cut:]), splitter.rest())
print(sharing.decay(10**6, 7), sharing.batch_slots(None, None, 8, False))
print(used, Path(events.__file__).suffix, file=sys.stderr)
"""


def split(place: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SPLIT, str(place)],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr.strip()


def test_what_is_compiled_answers_as_its_source(tmp_path: Path) -> None:
    """Two modules are compiled, are what is imported then, and give the same results."""
    built = subprocess.run(
        [sys.executable, "-c",
         "import sys; from pathlib import Path; from gateway import compiled;"
         "print(compiled.build(sys.argv[2].split(','), Path(sys.argv[1])))",
         str(tmp_path), ",".join(FEW)],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    place = Path(built.stdout.splitlines()[-1])

    plain, of_plain = split(tmp_path / "nothing")
    fast, of_fast = split(place)

    assert of_plain == "False .py"
    assert of_fast == "True .so"
    assert fast == plain


def test_a_changed_source_is_never_run_in_its_old_form(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder of a build is named after its source: one letter more, and there is none."""
    sources = tmp_path / "gateway" / "core"
    sources.mkdir(parents=True)
    for name in FEW:
        text = (ROOT / "gateway" / f"{name}.py").read_text()
        (tmp_path / "gateway" / f"{name}.py").write_text(text)
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    before = compiled.folder(FEW)

    (sources / "events.py").write_text((sources / "events.py").read_text() + "#")

    assert compiled.folder(FEW) != before


def compile_all() -> None:
    if not compiled.folder().is_dir():
        subprocess.run([sys.executable, "-m", "gateway.compiled"], cwd=ROOT, check=True)


def ask(port: int, secret: str, *, stream: bool) -> tuple[list[str], bytes]:
    body: dict[str, Any] = {
        "model": "bench", "stream": stream, "messages": [{"role": "user", "content": "hello"}],
    }  # fmt: skip
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/chat/completions", json=body,
        headers={"authorization": f"Bearer {secret}"}, timeout=30,
    )  # fmt: skip
    names = [name for name in answer.headers if name != "date"]
    return names, re.sub(rb'"created":\d+', b"", answer.content)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ledger", ["memory", "redis"])
async def test_a_compiled_gateway_answers_as_an_interpreted_one(
    ledger: str, redis_server: str, tmp_path: Path
) -> None:
    """A plain answer and a stream have the same headers and bytes, refusals the same words."""
    await asyncio.to_thread(compile_all)
    engine = await asyncio.get_running_loop().create_server(rig.Engine, "127.0.0.1", 0)
    port = engine.sockets[0].getsockname()[1]
    decoding = asyncio.create_task(rig.decode())

    answers = []
    for is_compiled in (True, False):
        ours = Ours(ledger, redis_server, is_compiled=is_compiled)
        peer = await asyncio.to_thread(ours, tmp_path, free_port(), port)
        with running(peer):
            answers.append([
                await asyncio.to_thread(ask, peer.port, secret, stream=stream)
                for stream in (False, True) for secret in (peer.secret, "sk-wrong")
            ])  # fmt: skip

    decoding.cancel()
    engine.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("module", compiled.MODULES)
def test_no_compiled_module_awaits_while_it_handles_an_error(module: str) -> None:
    """An `except` or a `finally` that waits would lend its error to whatever ends meanwhile."""
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    tried = [
        node
        for node in ast.walk(ast.parse((ROOT / "gateway" / f"{module}.py").read_text()))
        if isinstance(node, ast.Try)
    ]

    handling = [part for node in tried for part in (*node.handlers, *node.finalbody)]

    assert not [
        part.lineno for part in handling for one in ast.walk(part) if isinstance(one, waits)
    ]
