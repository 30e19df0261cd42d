"""Brings the whole setup up in order, says where it is, and takes it down again.

Order: the port, the data folder, the stores, the tables and the first admin, the engine, then
everything else. What fails, fails early and with one sentence that says what to do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from django.conf import settings
from django.db import close_old_connections, connections

from portal import demo_engine, health, preparation, programs
from portal.preparation import Admin
from portal.processes import die_with_parent
from portal.stores import embedded, postgres, private_folder, run_dir, status, valkey
from portal.supervisor import Child, Ready, Supervisor, open_socket

STORE_LOGS = ("postgres.log", "valkey.log")  # in the data folder, each of the last run only
LOOPBACK = "127.0.0.1"
HEALTHY_S = 120.0
TWICE_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True)
class Welcome:
    """What a person needs in order to begin."""

    admin: Admin
    secret: str | None
    model: str


@dataclass
class Launch:
    """One run of `make up`, from the first socket to the last child."""

    say: Callable[[str, str], None]
    welcome: Callable[[Welcome], None]
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.say)

    async def run(self) -> None:
        """Run until somebody asks us to stop; raise when we cannot start."""
        if "MAKELEVEL" in os.environ:
            die_with_parent()  # make waits for us, so its end before ours is a kill -9
        stopping = self._on_signals()
        with ExitStack() as held:
            public = held.enter_context(open_socket(settings.HOST, settings.PORT))
            if settings.EMBEDDED_DATABASE or settings.EMBEDDED_REDIS:
                held.enter_context(embedded.owned(settings.DATA_DIR))
            async with AsyncExitStack() as running:
                running.push_async_callback(self.supervisor.stop)
                start = asyncio.create_task(self._start(public))
                stop = asyncio.create_task(stopping.wait())
                await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
                if start.done():
                    self.welcome(start.result())
                await stop
                start.cancel()
                self.say("up", "stopping; press Ctrl-C again to stop at once")

    def _on_signals(self) -> asyncio.Event:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        asked_at = loop.time()

        def stop() -> None:
            nonlocal asked_at
            if not stopping.is_set():
                asked_at = loop.time()
                stopping.set()

        def insist() -> None:
            # One Ctrl-C may arrive twice, from the terminal and from whatever runs us.
            if stopping.is_set() and loop.time() > asked_at + TWICE_S:
                os._exit(1)  # the kernel tells the children
            stop()

        loop.add_signal_handler(signal.SIGINT, insist)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop)
        return stopping

    async def _start(self, public: socket.socket) -> Welcome:
        await self._start_stores()
        admin = await asyncio.to_thread(_in_database, _prepare)
        await self._start_engine()
        _empty(settings.DATA_DIR / "metrics")
        fds = [public.fileno()] * settings.GATEWAY_PROCESSES
        gateways = [self._gateway(number, fd) for number, fd in enumerate(fds, 1)]
        clients = [Child(programs.worker()), Child(programs.beat())]
        groups = [[Child(programs.usage_writer())], [self._portal()], gateways, clients]
        for group in groups:
            self.supervisor.launch(*group)
        await self.supervisor.until_ready(*chain.from_iterable(groups))
        return await asyncio.to_thread(_in_database, partial(_welcome, admin))

    async def _start_stores(self) -> None:
        """Start the embedded stores that are wanted; addresses that are set start nothing."""
        folder = settings.DATA_DIR
        private_folder(run_dir(folder))  # the portal's socket is there, whoever runs the stores
        stores = []
        if settings.EMBEDDED_DATABASE:
            program = await asyncio.to_thread(postgres.program, folder)
            ready = _asking(postgres.is_ready, folder)
            stores.append(Child(program, ready, log=folder / STORE_LOGS[0]))
        if settings.EMBEDDED_REDIS:
            program = await asyncio.to_thread(valkey.program, folder)
            ready = _asking(valkey.is_ready, folder)
            stores.append(Child(program, ready, log=folder / STORE_LOGS[1]))
        self.supervisor.launch(*stores)
        await self.supervisor.until_ready(*stores)
        await asyncio.to_thread(status.require, settings.DATABASE_URL, settings.REDIS_URL)

    async def _start_engine(self) -> None:
        if settings.ENGINE_URL:
            await asyncio.to_thread(_in_database, preparation.register_own_engine)
            return
        if not await asyncio.to_thread(_in_database, preparation.wants_demo_engine):
            return
        if not programs.has_demo_engine():
            self.say("up", "the demo engine is not installed: register one with addengine")
            return
        port = _free_port()
        child = Child(
            programs.engine(port), _asking(health.gateway_answers, LOOPBACK, port, "/health")
        )
        self.supervisor.launch(child)
        register = partial(
            preparation.register_demo_engine,
            url=f"http://{LOOPBACK}:{port}",
            model=demo_engine.ALIAS,
            slots=demo_engine.SLOTS,
            context=demo_engine.CONTEXT // demo_engine.SLOTS,
        )
        await asyncio.to_thread(_in_database, register)
        await self.supervisor.until_ready(child)

    def _portal(self) -> Child:
        ready = _asking(health.portal_answers, settings.PORTAL_SOCKET, settings.PUBLIC_URL)
        return Child(programs.portal(), ready, HEALTHY_S)

    def _gateway(self, number: int, fd: int) -> Child:
        host = health.reachable(settings.HOST)
        ready = _asking(health.gateway_answers, host, settings.PORT, "/readyz")
        return Child(programs.gateway(number, fd), ready, HEALTHY_S)


def _asking(question: Callable[..., bool], *arguments: object) -> Ready:
    """Return a blocking question as one that the supervisor can wait for."""
    return partial(asyncio.to_thread, question, *arguments)


def _empty(folder: Path) -> None:
    """Forget the metrics of the last run, which would be added to those of this one."""
    private_folder(folder)
    for left in folder.glob("*.db"):
        left.unlink()


def _prepare() -> Admin:
    preparation.migrate()
    preparation.collect_static()
    return preparation.ensure_admin()


def _welcome(admin: Admin) -> Welcome:
    return Welcome(admin, preparation.first_key(admin.username), preparation.a_model())


def _in_database(work: Callable[[], T]) -> T:
    """Run `work` and give its connection back, because this thread may never run again."""
    close_old_connections()
    try:
        return work()
    finally:
        connections.close_all()


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
