"""`python -m gateway`: one gateway process, told everything by the environment."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys

import uvloop
from prometheus_client.multiprocess import mark_process_dead

from gateway import wiring
from gateway.app import App
from gateway.config import BadSetting, Config
from gateway.server import make_server


def main() -> int:
    """Serve until told to stop."""
    try:
        config = Config.from_environment()
    except BadSetting as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201 (before logging exists)
        return 2
    logging.basicConfig(
        level=config.log_level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # Clients that send nonsense or leave early are daily bread, not news.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # These would write a line for each probe, and at DEBUG the headers with it.
    for name in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What is loaded now stays for ever; a full collection over it would hold up every stream.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    app = App(lambda: wiring.services(config))
    server = make_server(app, config, app.drain)
    sockets = None if config.fd is None else [_inherited(config.fd)]
    try:
        uvloop.run(server.serve(sockets))
    except SystemExit:
        return 1  # uvicorn has said why it could not start
    finally:
        if config.metrics_dir:
            mark_process_dead(os.getpid(), config.metrics_dir)  # type: ignore[no-untyped-call]
    return 0 if server.started else 1


def _inherited(fd: int) -> socket.socket:
    """Return the supervisor's listening socket; its own copy stays open when ours is closed."""
    listening = socket.socket(fileno=fd)
    listening.setblocking(False)
    return listening


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main())
