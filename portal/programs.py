"""The programs of the one-command setup, one function each.

The container setup runs the same command lines; `tests/house` compares the two.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec

from django.conf import settings

from portal import demo_engine
from portal.processes import Program

DRAIN_S = 30.0  # what a gateway gives its streams to finish, see docs/settings.md


def gateway(number: int, fd: int) -> Program:
    """Return a gateway that shares the public socket `fd` with its siblings."""
    program = _manage("gateway" if number == 1 else f"gateway-{number}", "rungateway")
    env = {"GATEWAY_FD": str(fd), "PORTAL_SOCKET": settings.PORTAL_SOCKET}
    return replace(program, env={**program.env, **env}, pass_fds=(fd,), stop_s=DRAIN_S + 5)


def portal() -> Program:
    """Return the portal, on a private socket that the gateway passes requests to."""
    return _python(
        "portal", "uvicorn", "portal.asgi:application", "--uds", settings.PORTAL_SOCKET,
        "--no-access-log", "--no-server-header", "--proxy-headers", "--lifespan", "off",
        "--timeout-graceful-shutdown", "5", "--log-level", "warning",
    )  # fmt: skip


def worker() -> Program:
    """Return the Celery worker that batch jobs wake."""
    return _python(
        "worker", "celery", "--quiet", "-A", "portal", "worker", "--loglevel", "warning",
        "--concurrency", str(settings.BATCH_RUNNERS + 1), "--without-gossip", "--without-mingle",
    )  # fmt: skip


def beat() -> Program:
    """Return Celery's clock."""
    return _python(
        "beat", "celery", "--quiet", "-A", "portal", "beat", "--loglevel", "warning", "--pidfile="
    )


def usage_writer() -> Program:
    """Return the writer that carries usage from Redis to PostgreSQL."""
    return _manage("usage", "writeusage")


def engine(port: int) -> Program:
    """Return the demo engine."""
    # More threads than free cores make it slower, not faster: they wait for each other.
    threads = min(4, max(1, (os.cpu_count() or 2) // 2))
    return _python("engine", "portal.demo_engine", "--port", str(port), "--threads", str(threads))


def has_demo_engine() -> bool:
    """Answer whether the demo engine and its model are installed."""
    return find_spec("xllamacpp") is not None and demo_engine.bundled_model() is not None


def _manage(name: str, *arguments: str) -> Program:
    return _program(name, str(settings.BASE_DIR / "manage.py"), *arguments)


def _python(name: str, module: str, *arguments: str) -> Program:
    return _program(name, "-m", module, *arguments)


def _program(name: str, *arguments: str) -> Program:
    """Return a Python program of ours; it finds the same data folder wherever it is started."""
    return Program(
        name=name,
        argv=(sys.executable, *arguments),
        cwd=settings.BASE_DIR,
        env={"DATA_DIR": str(settings.DATA_DIR), "PYTHONUNBUFFERED": "1"},
    )
