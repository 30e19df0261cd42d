"""Puts the parts of one gateway process together; starts them in order, stops them in reverse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import redis.asyncio as redis

from gateway.answer import Buffers
from gateway.config import Config
from gateway.core.fields import Rules
from gateway.counters import Counters
from gateway.directory import Directory
from gateway.fleet.exports import FleetCollector
from gateway.fleet.holds import Holds
from gateway.fleet.prober import Fleet
from gateway.fleet.watcher import Watcher
from gateway.ledger.interface import Ledger
from gateway.ledger.memory import MemoryLedger
from gateway.ledger.redis import RedisLedger
from gateway.metrics import Metrics
from gateway.policies import FleetWriter, write_key
from gateway.quota import Quota
from gateway.services import Lookout, Services
from gateway.stopping import Stops
from gateway.upstream import Upstream
from gateway.usage import Outbox
from quotas.snapshots import directory as snapshots
from quotas.snapshots.addresses import allowed_hosts


def make_ledger(config: Config, outbox: Outbox) -> Ledger:
    """Return the ledger the settings name; its releases bring their records to the outbox."""
    if config.ledger == "redis":
        return RedisLedger(
            config.redis_url,
            name=config.process_name,
            # On a socket no other host can share the ledger, so an empty one may open at once.
            alone=config.processes == 1 and config.redis_url.startswith("unix:"),
            test_switch=config.test_clock,
            recorded=outbox.keep,
        )
    return MemoryLedger(test_switch=config.test_clock, append_usage=outbox.append)


def make(config: Config) -> Services:
    """Put together everything one gateway process needs."""
    outbox = Outbox(_redis(config))
    ledger = make_ledger(config, outbox)
    allowed = allowed_hosts(config.engine_hosts, [config.engine_url])
    fleet = Fleet(ledger, allowed=allowed, secret_key=config.secret_key)
    writer = FleetWriter(ledger)

    def on_fleet(published: snapshots.Fleet) -> None:
        writer.write(published)
        fleet.follow(published)

    directory = Directory(
        _redis(config), on_key=lambda key: write_key(ledger, key), on_fleet=on_fleet
    )
    counters = Counters(_redis(config))
    made = Services(
        config=config,
        directory=directory,
        counters=counters,
        quota=Quota(counters, directory),
        ledger=ledger,
        lookout=Lookout(ledger),
        fleet=fleet,
        upstream=Upstream(asyncio.get_running_loop()),
        outbox=outbox,
        metrics=Metrics(config.metrics_dir),
        buffers=Buffers(config.stream_buffer, config.process_buffer),
        holds=Holds(_redis(config), fleet),
        watcher=Watcher(_redis(config), ledger, fleet, name=config.process_name),
        stops=Stops(_redis(config)),
        rules=Rules(config.extra_fields, config.media_hosts, config.embedding_inputs),
    )
    made.stops.on_stop = made.stop
    made.metrics.collectors.append(FleetCollector(fleet, made.watcher))
    return made


@contextlib.asynccontextmanager
async def services(config: Config) -> AsyncIterator[Services]:
    """Run everything one gateway process needs."""
    made = make(config)
    parts = (
        made.outbox, made.ledger, made.fleet, made.directory, made.counters, made.holds,
        made.watcher, made.stops,
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        for part in parts:
            stack.push_async_callback(part.close)
            await part.start()
        ticking = asyncio.create_task(made.tick(), name="tick")
        stack.callback(made.upstream.close)
        stack.callback(ticking.cancel)
        yield made


def _redis(config: Config) -> redis.Redis:
    """Return a client of its own: nobody's stuck command holds up another part."""
    return redis.Redis.from_url(
        config.redis_url,
        socket_connect_timeout=2.0,
        socket_timeout=None,
        health_check_interval=0,
    )
