"""What this process knows of the books: keys, pools and replicas, as quotas publishes them.

Rule 1: no generation means unknown. Then nobody is told that their key is wrong; they are told to
come back (503 `directory_unavailable`).
Rule 2: a key's snapshot is trusted while the last good look at Redis is at most 3 s old, while
Redis is away for at most 5 s; so a revocation bites within 5 s whatever happens to hints.
Rule 3: no request's task ever talks to Redis here. All look-ups of one moment go into one MULTI
that reads the generation with the keys; a cancelled request cannot disturb the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import redis.asyncio as redis
from redis.exceptions import RedisError

from gateway import tasks
from gateway.errors import Unavailable
from quotas.snapshots.directory import (
    CHANGED,
    DIRECTORY,
    KEYS,
    Fleet,
    KeySnapshot,
    PoolSnapshot,
    ReplicaSnapshot,
    fleet_from_json,
    key_from_json,
)

POLL_S = 1.0
TRUSTED_S = 3.0
LONGEST_S = 5.0
ANSWER_S = 1.0  # a read that takes longer counts as failed
KEPT_KEYS = 10_000
KEPT_UNKNOWN = 4_096
RETRY_AFTER_S = 2
REPUBLISHED_S = 2.5  # so long a request waits for what Redis has forgotten to be published anew
AGAIN_S = 0.1

log = logging.getLogger("fairway.directory")


class Directory:
    """The newest published picture, kept fresh by one task."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        on_key: Callable[[KeySnapshot], None],
        on_fleet: Callable[[Fleet], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet = Fleet(version=0)
        self.edition = object()  # another one with each fleet: marks what was worked out of it
        self.generation = ""
        self.version = -1
        self._redis = client
        self._on_key = on_key
        self._on_fleet = on_fleet
        self._clock = clock
        self._seen_s = float("-inf")  # when Redis last answered with a generation
        self._keys: OrderedDict[str, KeySnapshot] = OrderedDict()
        self._raw: dict[str, bytes] = {}  # what each key was read from: few change at a time
        self._unknown: OrderedDict[str, None] = OrderedDict()
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._trouble = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._pools: dict[str, PoolSnapshot] = {}
        self._names: dict[str, str] = {}
        self._replicas: dict[str, ReplicaSnapshot] = {}
        self._of_pool: dict[str, tuple[str, ...]] = {}

    async def start(self) -> None:
        """Look once and then keep looking."""
        await self._read()
        self._tasks = [
            asyncio.create_task(self._follow(), name="directory"),
            asyncio.create_task(self._listen(), name="directory hints"),
        ]

    async def close(self) -> None:
        """Stop looking."""
        await tasks.end(*self._tasks)
        await self._redis.aclose()

    # Asking

    @property
    def age_s(self) -> float:
        """Seconds since Redis last told us the truth."""
        return self._clock() - self._seen_s

    @property
    def is_known(self) -> bool:
        """Tell whether keys can be checked now."""
        return self.age_s <= LONGEST_S

    def trusted(self, digest: str) -> KeySnapshot | None:
        """Return the key of this digest if it is at hand and fresh."""
        return self._keys.get(digest) if self.age_s <= TRUSTED_S else None

    async def key(self, digest: str) -> KeySnapshot | None:
        """Return the key of this digest, None when there is none; raises when that is unknown."""
        if known := self.trusted(digest):
            return known
        if digest in self._unknown and self.age_s <= TRUSTED_S:
            return None
        await self._ask(digest)
        give_up_s = self._clock() + REPUBLISHED_S
        while self._is_emptied(digest) and self._clock() < give_up_s:
            await asyncio.sleep(AGAIN_S)
            await self._ask(digest)
        if not self.is_known:
            raise Unavailable(
                "Keys cannot be checked at this moment; try again.",
                code="directory_unavailable",
                retry_after_s=RETRY_AFTER_S,
            )
        known = self._keys.get(digest)
        if known is None and digest not in self._unknown:
            # Redis is away and this key was never seen: unknown is not wrong.
            raise Unavailable(
                "Keys cannot be checked at this moment; try again.",
                code="directory_unavailable",
                retry_after_s=RETRY_AFTER_S,
            )
        return known

    def _is_emptied(self, digest: str) -> bool:
        """Tell whether Redis answers but has forgotten: the books publish anew in a moment."""
        return not self.generation and not (self.is_known and digest in self._keys)

    async def _ask(self, digest: str) -> None:
        future = self._wanted.get(digest)
        if future is None:
            future = self._wanted[digest] = asyncio.get_running_loop().create_future()
            self._wake.set()
        # Shielded: others may wait for the same key.
        await asyncio.shield(future)

    def pool(self, name: str) -> PoolSnapshot | None:
        """Return the pool of this name or alias."""
        return self._pools.get(self._names.get(name, ""))

    def pools(self) -> Iterable[PoolSnapshot]:
        """Return all pools that have a replica."""
        served = {replica.pool for replica in self.fleet.replicas if replica.state != "disabled"}
        return [pool for pool in self.fleet.pools if pool.name in served]

    def replica(self, replica_id: str) -> ReplicaSnapshot | None:
        """Return a replica."""
        return self._replicas.get(replica_id)

    def replica_ids(self, pool: str) -> tuple[str, ...]:
        """Return the replicas of a pool, whether up or not."""
        return self._of_pool.get(pool, ())

    # Looking

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
            self._wake.clear()
            await self._read()

    async def _listen(self) -> None:
        """Follow hints; they may be lost, the poll does not need them."""
        while True:
            try:
                async with self._redis.pubsub() as hints:
                    await hints.subscribe(CHANGED)
                    async for _ in hints.listen():
                        self._wake.set()
            except (RedisError, OSError):
                await asyncio.sleep(POLL_S)

    async def _read(self) -> None:
        wanted, self._wanted = self._wanted, {}
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._look(list(wanted))
        except (RedisError, OSError, TimeoutError) as error:
            self._note(type(error).__name__)
        except Exception:
            log.exception("the directory holds something unreadable")
        finally:
            for future in wanted.values():
                if not future.done():
                    future.set_result(None)

    def _note(self, trouble: str) -> None:
        """Log when trouble begins and when it ends, not each second of it."""
        if trouble and not self._trouble:
            log.warning("the directory cannot be read: %s", trouble)
        elif self._trouble and not trouble:
            log.warning("the directory is read again")
        self._trouble = trouble

    async def _look(self, digests: list[str]) -> None:
        began_s = self._clock()
        generation, version, keys = await self._fetch(digests)
        if generation and (generation, version) != (self.generation, self.version):
            # All known keys again, and the fleet, in one look at one version.
            digests = list(dict.fromkeys([*digests, *self._keys]))
            generation, version, keys, fleet = await self._fetch_all(digests)
            self._changed(generation, version, fleet)
        if not generation:
            # Emptied: known keys stay good for their few seconds, new ones wait.
            self.generation = ""
            self._note("nothing is published")
            return
        self._seen_s = began_s
        self._note("")
        for digest, raw in zip(digests, keys, strict=True):
            self._take(digest, raw)

    async def _fetch(self, digests: list[str]) -> tuple[str, int, list[bytes | None]]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(DIRECTORY, ["generation", "version"])
            if digests:
                pipe.hmget(KEYS, digests)
            answers = await pipe.execute()
        generation, version = answers[0]
        return _text(generation), int(version or 0), answers[1] if digests else []

    async def _fetch_all(
        self, digests: list[str]
    ) -> tuple[str, int, list[bytes | None], bytes | None]:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(DIRECTORY, ["generation", "version", "fleet"])
            if digests:
                pipe.hmget(KEYS, digests)
            answers = await pipe.execute()
        generation, version, fleet = answers[0]
        return _text(generation), int(version or 0), answers[1] if digests else [], fleet

    def _changed(self, generation: str, version: int, fleet: bytes | None) -> None:
        self._unknown.clear()
        if generation and fleet:
            self.fleet, self.edition = fleet_from_json(fleet), object()
            self._pools = {pool.name: pool for pool in self.fleet.pools}
            self._names = {alias: pool.name for pool in self.fleet.pools for alias in pool.aliases}
            self._names.update({name: name for name in self._pools})
            self._of_pool = {
                pool.name: tuple(
                    replica.replica_id
                    for replica in self.fleet.replicas
                    if replica.pool == pool.name and replica.state != "disabled"
                )
                for pool in self.fleet.pools
            }
            self._replicas = {replica.replica_id: replica for replica in self.fleet.replicas}
            self._on_fleet(self.fleet)
        self.generation, self.version = generation, version

    def _take(self, digest: str, raw: bytes | None) -> None:
        if raw is not None and raw == self._raw.get(digest):
            self._keys.move_to_end(digest)
            return
        before = self._keys.pop(digest, None)
        self._raw.pop(digest, None)
        if raw is None:
            self._unknown[digest] = None
            while len(self._unknown) > KEPT_UNKNOWN:
                self._unknown.popitem(last=False)
            return
        self._unknown.pop(digest, None)
        key = self._keys[digest] = key_from_json(raw)
        self._raw[digest] = raw
        if key != before:
            self._on_key(key)
        while len(self._keys) > KEPT_KEYS:
            del self._raw[self._keys.popitem(last=False)[0]]


def _text(raw: bytes | None) -> str:
    return raw.decode() if raw else ""
