"""`python -m gateway`: one gateway process, told everything by the environment."""

# ruff: noqa: E402
from __future__ import annotations

from gateway import compiled

IS_COMPILED = compiled.use()  # before anything else of the gateway is imported

import dataclasses
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop
from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead

from gateway import metric_files, wiring
from gateway.config import BadSetting, Config
from gateway.server import Server


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
    # These would write a line for each probe, and at DEBUG the headers with it.
    for name in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What is loaded now stays for ever; a full collection over it would hold up every stream.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    if config.metrics_dir and not metric_files.prepare(Path(config.metrics_dir), os.getpid()):
        logging.error("no room in %s: /metrics tells of this process alone", config.metrics_dir)
        config = dataclasses.replace(config, metrics_dir="")
        values.ValueClass = values.MutexValue
    try:
        uvloop.run(_serve(config))
    except OSError as error:
        print(f"gateway: cannot listen: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except Exception:
        logging.getLogger("fairway").exception("the gateway cannot run")
        return 1
    finally:
        if config.metrics_dir:
            mark_process_dead(os.getpid(), config.metrics_dir)  # type: ignore[no-untyped-call]
    return 0


async def _serve(config: Config) -> None:
    await Server(config, wiring.services).serve()


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main())
