"""Watches every replica from beside the hot path and tells the ledger what each one can take.

One task per replica, so that an engine that hangs delays nobody else's probes. It follows the
directory: replicas come, go and change without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from gateway.engines.base import NO_PAGE, Engine, Page
from gateway.engines.detect import adapter
from gateway.fleet import pages
from gateway.fleet.activity import Activity
from gateway.fleet.health import Condition
from gateway.fleet.lingering import Lingerers
from gateway.fleet.replica import Replica
from gateway.ledger.interface import Ledger
from gateway.upstream import Upstream
from quotas.snapshots.addresses import AllowedHosts, refused_answers
from quotas.snapshots.directory import Fleet as FleetSnapshot
from quotas.snapshots.directory import ReplicaSnapshot
from quotas.snapshots.live import EngineLive
from quotas.snapshots.measured import Measured
from quotas.snapshots.sealed import opened

log = logging.getLogger("fairway.fleet")

INTERVAL_S = 2.0
TIMEOUT_S = 2.0
ABSENT_S = 60.0  # a page that was not there may have been missing for a moment only


class Fleet:
    """All replicas as this process sees them."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        allowed: AllowedHosts | None = None,
        secret_key: str = "",
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.ledger = ledger
        self._allowed = allowed  # None: every address was checked by whoever registered it
        self._secret_key = secret_key  # opens the keys that engines ask for
        self._interval_s = interval_s
        self._clock = clock
        self._wall = wall
        self._replicas: dict[str, Replica] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._upstream: Upstream | None = None
        self._lingerers = Lingerers(ledger, self._slots_busy)
        self._stray = Activity(lambda event: None)  # for replicas that were just removed

    # Life

    async def start(self) -> None:
        """Be ready to ask; replicas are watched from the first `follow` on."""
        self._upstream = Upstream(asyncio.get_running_loop())
        for replica in self._replicas.values():
            self._watch(replica)

    async def close(self) -> None:
        """Stop watching."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lingerers.close()
        self._upstream = None

    def follow(self, fleet: FleetSnapshot) -> None:
        """Take over the fleet of a new version of the books."""
        wanted = {r.replica_id: r for r in fleet.replicas if r.state != "disabled"}
        for replica_id in self._replicas.keys() - wanted.keys():
            self._forget(replica_id)
        for replica_id, snapshot in wanted.items():
            known = self._replicas.get(replica_id)
            if known is None or _moved(known.snapshot, snapshot):
                self._forget(replica_id)
                known = self._replicas[replica_id] = Replica(snapshot)
                self._watch(known)
            else:
                known.replaced(snapshot)
            self._tell(known)

    def _watch(self, replica: Replica) -> None:
        if self._upstream is None:
            return
        name = replica.snapshot.replica_id
        self._tasks[name] = asyncio.create_task(self._run(replica), name=f"probe {name}")

    def _forget(self, replica_id: str) -> None:
        task = self._tasks.pop(replica_id, None)
        if task is not None:
            task.cancel()
        self._lingerers.forget(replica_id)
        gone = self._replicas.pop(replica_id, None)
        if gone is not None:
            self.ledger.observe_replica(replica_id, accepts=False)

    # Looking

    def activity(self, replica_id: str) -> Activity:
        """Return where the gateway notes its own work on a replica."""
        replica = self._replicas.get(replica_id)
        return self._stray if replica is None else replica.activity

    def replica(self, replica_id: str) -> Replica | None:
        """Return all that is known of a replica."""
        return self._replicas.get(replica_id)

    def replicas(self) -> Iterable[Replica]:
        """Return all replicas that are watched."""
        return tuple(self._replicas.values())

    def engines(self, held: Mapping[str, tuple[int, int]] | None = None) -> tuple[EngineLive, ...]:
        """Return the records for /internal/live; `held` = slots by replica, per class."""
        now_s, ours = self._clock(), held or {}
        return tuple(
            replica.live(now_s, ours.get(name, (0, 0)))
            for name, replica in sorted(self._replicas.items())
        )

    def noticed(self, replica_id: str) -> None:
        """Judge at once what requests just went through, instead of at the next probe."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            self._hear(replica)
            self._tell(replica)

    def _hear(self, replica: Replica) -> None:
        """Take in what its requests went through; one that wants a pause is judged again after."""
        before, now_s = replica.back_off, self._clock()
        replica.drain_events(now_s)
        if replica.back_off.until_s > before.until_s:
            pause_s = replica.back_off.left_s(now_s) * random.uniform(1, 1.25)  # noqa: S311 (jitter)
            name = replica.snapshot.replica_id
            asyncio.get_running_loop().call_later(pause_s, self.noticed, name)

    # Lingering

    def linger(self, replica_id: str, most_s: float, release: Callable[[], None]) -> None:
        """Call `release` when the engine has let go of the slot of a call that is over."""
        if replica_id in self._replicas:
            self._lingerers.add(replica_id, most_s, release)
        else:
            release()

    async def _slots_busy(self, replica_id: str) -> int | None:
        """Ask a llama.cpp how many of its slots work."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return None
        page = await self._page(replica, "/slots")
        return adapter(replica.snapshot.kind).reading({"/slots": page}).running

    # Holding

    def hold(self, holds: Mapping[str, tuple[float, str]]) -> None:
        """Take over who is held: replica -> until when (Unix seconds) and why; the rest is free."""
        for name, replica in self._replicas.items():
            if replica.hold != holds.get(name):
                replica.hold = holds.get(name)
                self._tell(replica)

    @property
    def is_held(self) -> bool:
        """Tell whether any replica is held."""
        return any(replica.hold is not None for replica in self._replicas.values())

    def measured_until(self, pool: str) -> float | None:
        """Return when the pool is back if every replica of it is held, else None."""
        until = None
        for replica in self._replicas.values():
            if replica.snapshot.pool == pool:
                if replica.hold is None:
                    return None
                until = min(until or replica.hold[0], replica.hold[0])
        return until

    def know_measured(self, measured: Mapping[str, Measured]) -> None:
        """Take over what each replica was measured at."""
        for name, replica in self._replicas.items():
            replica.measured = measured.get(name)

    def know_foreign(self, strangers: Mapping[str, int]) -> None:
        """Take over how many requests in each engine did not come through us."""
        for name, replica in self._replicas.items():
            replica.foreign = strangers.get(name)

    def now_s(self) -> float:
        """Return the time on the fleet's own clock."""
        return self._clock()

    # Watching

    async def _run(self, replica: Replica) -> None:
        engine = adapter(replica.snapshot.kind)
        while True:
            began_s = self._clock()
            try:
                await self._look(replica, engine)
            except Exception:
                # A fault of ours in judging one replica must not blind the gateway to it.
                log.exception("probe of %s failed", replica.snapshot.name)
            await asyncio.sleep(max(0.0, began_s + self._interval_s - self._clock()))

    async def _look(self, replica: Replica, engine: Engine) -> None:
        replica.refused_address = await self._refused(replica.snapshot.url)
        if not replica.refused_address:
            await asyncio.gather(self._health(replica, engine), self._numbers(replica, engine))
            if replica.facts is None and replica.probes.condition is Condition.UP:
                await self._facts(replica, engine)
        self._hear(replica)
        if replica.watch(self._clock()):
            log.error("%s holds requests but makes no progress", replica.snapshot.name)
        self._tell(replica)

    async def _health(self, replica: Replica, engine: Engine) -> None:
        answer = NO_PAGE
        for path in engine.health_paths:
            answer = await self._page(replica, path)
            if answer.status != 404:
                break
        health = engine.health(answer)
        before = replica.probes.condition
        replica.probed(self._clock(), self._wall(), health)
        if replica.probes.condition is not before:
            log.warning("%s is %s", replica.snapshot.name, replica.probes.condition)

    async def _numbers(self, replica: Replica, engine: Engine) -> None:
        now_s = self._clock()
        paths = [path for path in engine.reading_paths if replica.absent.get(path, 0.0) <= now_s]
        if not paths:
            return
        answers = await self._pages(replica, paths)
        missing = [path for path, answer in answers.items() if answer.status == 404]
        replica.absent.update(dict.fromkeys(missing, now_s + ABSENT_S))
        if any(answer.timed_out for answer in answers.values()):
            replica.metrics_silent = True
            return
        self._note_key(replica, answers)
        if not any(answer.ok for answer in answers.values()):
            replica.metrics_silent = False
            return
        reading = engine.reading(answers)
        if replica.read(self._clock(), self._wall(), reading):
            log.warning("%s was restarted", replica.snapshot.name)

    async def _facts(self, replica: Replica, engine: Engine) -> None:
        answers = await self._pages(replica, engine.facts_paths)
        if not any(answer.timed_out for answer in answers.values()):
            self._note_key(replica, answers)
            replica.learned(engine.facts(answers))

    def _note_key(self, replica: Replica, answers: Mapping[str, Page]) -> None:
        before = bool(replica.key_refused_on)
        replica.key_refused_on -= {path for path, answer in answers.items() if answer.ok}
        replica.key_refused_on |= {p for p, answer in answers.items() if answer.status == 401}
        if replica.key_refused_on and not before:
            log.error("%s asks for a key it was not shown", replica.snapshot.name)

    async def _pages(self, replica: Replica, paths: Iterable[str]) -> dict[str, Page]:
        url, key = replica.snapshot.url, self._key_of(replica)
        return await pages.pages(self._client(), url, paths, TIMEOUT_S, key)

    async def _page(self, replica: Replica, path: str) -> Page:
        url, key = replica.snapshot.url, self._key_of(replica)
        return await pages.page(self._client(), url, path, TIMEOUT_S, key)

    def _key_of(self, replica: Replica) -> str:
        return opened(self._secret_key, replica.snapshot.sealed_key)

    async def _refused(self, url: str) -> str:
        """Return why the address may not be used now: a name may lead elsewhere than before."""
        if self._allowed is None:
            return ""
        host = urlsplit(url).hostname or ""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return refused_answers(host, [host], self._allowed)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except (OSError, TimeoutError):
            return "The host name of the engine cannot be looked up."
        return refused_answers(host, [str(entry[4][0]) for entry in found], self._allowed)

    def _client(self) -> Upstream:
        if self._upstream is None:
            raise RuntimeError("the fleet was not started")
        return self._upstream

    def _tell(self, replica: Replica) -> None:
        seen = replica.observation(self._clock())
        self.ledger.observe_replica(
            replica.snapshot.replica_id,
            accepts=seen.accepts,
            slots=seen.slots,
            incarnation=seen.incarnation,
            affine=seen.affine,
        )


def _moved(old: ReplicaSnapshot, new: ReplicaSnapshot) -> bool:
    """Tell whether the replica is another server now, of which nothing is known yet."""
    was = (old.url, old.kind, old.pool, old.sealed_key)
    return was != (new.url, new.kind, new.pool, new.sealed_key)
