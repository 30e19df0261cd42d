"""Looks at the whole once a second: who waits for what, how full each pool is, what is foreign.

One process of the installation looks (a short lease in Redis says which) and shares what it found:
`fairway:watch`, JSON of the picture, which every process shows while it is fresh; and
`fairway:watch:history:<pool>`, the verdict's samples of the last two hours, so that a restart of a
gateway does not forget that a pool was saturated.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import redis.asyncio as redis
from redis.exceptions import RedisError

from gateway import tasks
from gateway.core.types import Blocker, LedgerView, ServiceClass
from gateway.core.verdict import OVERLOADED_WINDOW_S, SAMPLE_S, Judge, Sample, attribute
from gateway.fleet.changes import Starts, Strangers
from gateway.fleet.minutes import Minutes
from gateway.fleet.prober import Fleet
from gateway.fleet.totals import pool_now, queue_now
from gateway.ledger.interface import Ledger
from quotas.snapshots import exports
from quotas.snapshots.exports import EXPORTS, Gauge
from quotas.snapshots.live import VerdictLive
from quotas.snapshots.measured import MEASURED, MINUTES, Measured, measured_from_json

LOOK_S = 1.0
LEASE_MS = 4000
FRESH_S = 15.0
KEPT = int(OVERLOADED_WINDOW_S / SAMPLE_S) + 10
LOOKER, PICTURE, HISTORY = "fairway:watch:looker", "fairway:watch", "fairway:watch:history:"
OUTLOOK_S = 20.0  # looking ahead costs up to a second of a core
KEPT_MINUTES = 20_000  # some days of a few pools, should the books be away
ANSWER_S = 2.0
CLASSES = tuple(ServiceClass)
INTERACTIVE = ServiceClass.INTERACTIVE.value

log = logging.getLogger("fairway.watch")


@dataclass(slots=True)
class PoolBooks:
    """What this process keeps of one pool while it is the one that looks."""

    judges: dict[ServiceClass, Judge] = field(
        default_factory=lambda: {service_class: Judge(service_class) for service_class in CLASSES}
    )
    waits_s: dict[ServiceClass, list[float]] = field(
        default_factory=lambda: {service_class: [] for service_class in CLASSES}
    )


class Watcher:
    """The one task that looks, or reads what another process saw."""

    def __init__(
        self,
        client: redis.Redis,
        ledger: Ledger,
        fleet: Fleet,
        *,
        name: str,
        look_s: float = LOOK_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.verdicts: tuple[VerdictLive, ...] = ()
        self.waited_s: dict[str, dict[str, dict[str, float]]] = {}  # pool, class, blocker
        self.worker_at = wall()  # when the Celery worker last reported, or since when we listen
        self.books: tuple[Gauge, ...] = ()  # what the books want shown on the metrics page
        self._queue: dict[str, dict[str, dict[str, float | None]]] = {}  # pool, class, name
        self._redis = client
        self._ledger = ledger
        self._fleet = fleet
        self._name = name
        self._look_s = look_s
        self._wall = wall
        self._seen_at = 0.0
        self._looking = False
        self._pools: dict[str, PoolBooks] = {}
        self._starts = Starts()
        self._strangers = Strangers()
        self._foreign: dict[str, int] = {}
        self._looked_at = 0.0
        self._sampled_at = 0.0
        self._minutes = Minutes()
        self._kept_s: dict[str, dict[str, float]] = {}  # pool: waited, by blocker, in a minute yet
        self._outlook: dict[str, dict[str, int | None]] = {}
        self._outlook_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._run(), name="watch")

    async def close(self) -> None:
        """Stop looking."""
        await tasks.end(*(task for task in (self._task, self._asking) if task is not None))
        await self._redis.aclose()

    @property
    def is_fresh(self) -> bool:
        """Tell whether the picture may be shown as current."""
        return self._wall() - self._seen_at <= FRESH_S

    def current(self) -> tuple[VerdictLive, ...]:
        """Return the verdicts, or nothing when they are old."""
        return self.verdicts if self.is_fresh else ()

    def current_queue(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Return running, waiting, held, oldest and expected wait, or nothing when it is old."""
        return self._queue if self.is_fresh else {}

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self.turn()
            except (RedisError, OSError, TimeoutError):
                self._looking = False
            except Exception:
                log.exception("the look at the whole failed")
                self._looking = False
            await asyncio.sleep(self._look_s)

    async def turn(self) -> None:
        """Look if it is our turn, else read what was seen."""
        await self._hear_books()
        if await self._is_ours():
            view = await self._ledger.glance()
            await self._look(view)
        else:
            self._looking = False
            await self._read()

    async def _is_ours(self) -> bool:
        if await self._redis.set(LOOKER, self._name, px=LEASE_MS, nx=True):
            return True
        if _text(await self._redis.get(LOOKER)) != self._name:
            return False
        await self._redis.pexpire(LOOKER, LEASE_MS)
        return True

    async def _hear_books(self) -> None:
        """Read what replicas were measured at, and the books' own numbers."""
        raw, told = await asyncio.gather(self._redis.hgetall(MEASURED), self._redis.get(EXPORTS))
        try:
            at, gauges = exports.from_json(told) if told else (0.0, [])
            self.books = tuple(gauges)
            self.worker_at = max(self.worker_at, at)
        except (ValueError, TypeError, KeyError):
            self.books = ()
        found: dict[str, Measured] = {}
        for replica_id, text in raw.items():
            try:
                found[_text(replica_id)] = measured_from_json(text)
            except (ValueError, TypeError, KeyError):
                log.warning("what %s was measured at cannot be read", _text(replica_id))
        self._fleet.know_measured(found)

    # Looking

    async def _look(self, view: LedgerView) -> None:
        now = self._wall()
        if not self._looking:
            await self._remember(now)
            self._looking = True
        self._attribute(view, now)
        self._note_waits(view)
        self._find_strangers(view, now)
        self._queue = {pool: self._queue_of(pool, view) for pool in self._names()}
        if now - self._sampled_at >= SAMPLE_S:
            self._sampled_at = now
            await self._sample(view, now)
            await self._keep_minutes(view, now)
        self._looked_at = self._seen_at = now
        await self._redis.set(PICTURE, json.dumps(self._picture(now)))

    async def _remember(self, now: float) -> None:
        """Take over the history another process kept, and what it had summed up."""
        await self._read()
        self._pools.clear()
        self._starts, self._looked_at = Starts(), now
        for pool in self._names():
            books = self._pools[pool] = PoolBooks()
            for raw in await self._redis.lrange(HISTORY + pool, 0, -1):
                for service_class, sample in _samples(raw).items():
                    if sample.at_s > now - OVERLOADED_WINDOW_S:
                        books.judges[service_class].add(sample)

    def _names(self) -> set[str]:
        return {replica.snapshot.pool for replica in self._fleet.replicas()}

    def _attribute(self, view: LedgerView, now: float) -> None:
        """Add the time since the last look to each blocker that somebody waits for."""
        span_s = min(max(0.0, now - self._looked_at), 5.0)
        for (pool, service_class, blocker), count in attribute(view.queued).items():
            of_class = self.waited_s.setdefault(pool, {}).setdefault(service_class.value, {})
            of_class[blocker.value] = of_class.get(blocker.value, 0.0) + count * span_s

    def _note_waits(self, view: LedgerView) -> None:
        for pool, service_class, waited_s in self._starts.since_last(view):
            self._pools.setdefault(pool, PoolBooks()).waits_s[service_class].append(waited_s)

    def _queue_of(self, pool: str, view: LedgerView) -> dict[str, dict[str, float | None]]:
        return {
            c.value: queue_now(pool, c, view, self._outlook.get(pool, {}).get(c.value))
            for c in CLASSES
        }

    def _find_strangers(self, view: LedgerView, now: float) -> None:
        held: dict[str, int] = {}
        for holding in view.running:
            held[holding.replica_id] = held.get(holding.replica_id, 0) + holding.weight
        inside = [
            (r.snapshot.replica_id, None if r.hold else r.inside(self._fleet.now_s()))
            for r in self._fleet.replicas()
        ]
        self._foreign = self._strangers.look(now, inside, held)
        self._fleet.know_foreign(self._foreign)

    async def _sample(self, view: LedgerView, now: float) -> None:
        waiting = attribute(view.queued)
        for pool in self._names() | self._pools.keys():
            books = self._pools.setdefault(pool, PoolBooks())
            running = self._running_in(view, pool)
            row: dict[str, Any] = {"at": now, "running": running}
            for service_class in CLASSES:
                sample = Sample(
                    now,
                    running,
                    {b: n for (p, c, b), n in waiting.items() if (p, c) == (pool, service_class)},
                    tuple(books.waits_s[service_class]),
                )
                books.waits_s[service_class].clear()
                books.judges[service_class].add(sample)
                row[service_class.value] = [dict(sample.waiting), list(sample.waits_s)]
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.rpush(HISTORY + pool, json.dumps(row))
                pipe.ltrim(HISTORY + pool, -KEPT, -1)
                pipe.expire(HISTORY + pool, round(OVERLOADED_WINDOW_S))
                await pipe.execute()
        self.verdicts = tuple(self._verdicts(now))

    async def _look_ahead(self) -> None:
        """Ask for newcomers' waits beside the looks: it may take longer than a look may."""
        try:
            self._outlook = (await self._ledger.view()).newcomer_wait_ms
        except Exception as error:  # the ledger is away; the next look says so
            log.info("no outlook: %s", type(error).__name__)
            self._outlook = {}

    async def _keep_minutes(self, view: LedgerView, now: float) -> None:
        """Add this look to the open minutes and hand over those that are over."""
        if now - self._outlook_at >= OUTLOOK_S and (self._asking is None or self._asking.done()):
            self._outlook_at = now
            self._asking = asyncio.create_task(self._look_ahead(), name="outlook")
        words = {v.pool: v.word for v in self.verdicts if v.service_class == INTERACTIVE}
        rows = []
        for pool in self._names():
            replicas = [r for r in self._fleet.replicas() if r.snapshot.pool == pool]
            waited = self.waited_s.get(pool, {}).get(INTERACTIVE, {})
            kept = self._kept_s.setdefault(pool, dict(waited))
            grown = {b: s - kept.get(b, 0.0) for b, s in waited.items() if s > kept.get(b, 0.0)}
            self._kept_s[pool] = dict(waited)
            seen = pool_now(pool, view, replicas, self._outlook.get(pool, {}), self._fleet.now_s())
            word = words.get(pool, "unknown")
            rows += self._minutes.add(pool, now, seen, verdict=word, waited_s=grown)
        if rows:
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.rpush(MINUTES, *map(json.dumps, rows))
                pipe.ltrim(MINUTES, -KEPT_MINUTES, -1)
                await pipe.execute()

    def _running_in(self, view: LedgerView, pool: str) -> int | None:
        """Return the pool's sequences in flight; unknown while no engine of it is heard."""
        if not view.open:
            return None
        mine = [r for r in self._fleet.replicas() if r.snapshot.pool == pool]
        count = sum(holding.weight for holding in view.running if holding.pool == pool)
        heard = any(r.is_heard(self._wall()) for r in mine)
        waits = any(standing.pool == pool for standing in view.queued)
        # Nothing is heard of any engine: with people waiting that is "down", else unknown.
        return count if heard or waits else None

    def _verdicts(self, now: float) -> list[VerdictLive]:
        found = []
        for pool, books in sorted(self._pools.items()):
            for service_class, judge in books.judges.items():
                verdict = judge.at(now)
                found.append(
                    VerdictLive(
                        pool=pool,
                        service_class=service_class.value,
                        word=verdict.word.value,
                        since=verdict.since_s,
                        cause=verdict.cause.value if verdict.cause else None,
                        ratio=verdict.ratio,
                    )
                )
        return found

    # Sharing

    def _picture(self, now: float) -> dict[str, Any]:
        return {
            "at": now,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "waited_s": self.waited_s,
            "queue": self._queue,
            "foreign": self._foreign,
        }

    async def _read(self) -> None:
        raw = await self._redis.get(PICTURE)
        if raw is None:
            return
        try:
            picture: Mapping[str, Any] = json.loads(raw)
            self.verdicts = tuple(VerdictLive(**verdict) for verdict in picture["verdicts"])
            self.waited_s = dict(picture["waited_s"])
            self._queue = dict(picture["queue"])
            self._seen_at = float(picture["at"])
            self._fleet.know_foreign(picture["foreign"])
        except (ValueError, TypeError, KeyError):
            log.warning("the shared picture cannot be read")


def _samples(raw: bytes | str) -> dict[ServiceClass, Sample]:
    """Read one kept row; a row of an older version is left out."""
    try:
        row = json.loads(raw)
        return {
            service_class: Sample(
                float(row["at"]),
                row["running"],
                {Blocker(name): int(n) for name, n in row[service_class.value][0].items()},
                tuple(map(float, row[service_class.value][1])),
            )
            for service_class in CLASSES
        }
    except (ValueError, TypeError, KeyError, IndexError):
        return {}


def _text(raw: bytes | str | None) -> str:
    if raw is None:
        return ""
    return raw.decode() if isinstance(raw, bytes) else raw
