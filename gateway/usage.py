"""Gets every usage record into the books' stream, and keeps it until the books have it.

Rule 1: a record is kept in memory until the position published by the usage writer has passed it;
Redis losing its memory costs a second copy, never the row. Each append tells that position too: at
20,000 requests a second what a second keeps is 15 MB.
Rule 2: (request id, arrived_at) makes a second copy harmless, so when in doubt append again.
Rule 3: with the Redis ledger a release appends its record itself, in the same atomic step; then
only the copy is kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections import Counter, deque
from typing import Any, Final

import redis.asyncio as redis
from redis.exceptions import RedisError

from gateway import tasks
from quotas.snapshots.usage import (
    EPOCH,
    FIELD,
    REJECTED_KEPT_S,
    STREAM,
    WRITTEN,
    rejected_field,
    rejected_minute,
)

FLUSH_S = 0.05
LOOK_S = 1.0
AWAY_S = 1.0
BATCH = 500
KEPT_REJECTED = 10_000  # counts of different keys, codes and minutes
KEPT: Final = 200_000  # records; beyond this the oldest are given up, with an alarm
# One argument for many records (JSON holds no line break) and one answer, the id of the last: for
# redis-py each further one costs as much as serving a request's bytes.
APPEND = """
local id
for record in string.gmatch(ARGV[2], '[^\\n]+') do
  id = redis.call('XADD', KEYS[1], '*', ARGV[1], record)
end
return {id, redis.call('GET', KEYS[2])}
"""
ENSURE_EPOCH = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET') or ARGV[1]"

log = logging.getLogger("fairway.usage")

Position = tuple[int, int]


class _Appended:
    """Records that went to the stream together, and where the last of them lies."""

    __slots__ = ("last", "records")

    def __init__(self, records: list[bytes], last: Position) -> None:
        self.records = records
        self.last = last


def _position(stream_id: str) -> Position:
    head, _, tail = stream_id.partition("-")
    return int(head), int(tail or 0)


class Outbox:
    """Records on their way to the stream; one task talks to Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._pending: deque[bytes] = deque()
        self._under_way: list[bytes] = []  # being appended
        self._appended: deque[_Appended] = deque()
        self._in_stream = 0  # records of all that is appended
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._epoch = ""
        self._run_id = ""
        self._looked_at = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.given_up = 0

    def append(self, record: bytes) -> None:
        """Take a record to be appended."""
        self._pending.append(record)
        self._wake.set()
        if self.waiting > KEPT:
            self._give_up_oldest()

    def keep(self, record: bytes, stream_id: str) -> None:
        """Take a copy of a record that the ledger has appended."""
        position = _position(stream_id)
        latest = self._appended[-1] if self._appended else None
        if latest is not None and latest.last[0] == position[0]:  # in one millisecond: one step
            latest.records.append(record)
            latest.last = position
        else:
            self._appended.append(_Appended([record], position))
        self._in_stream += 1
        if self.waiting > KEPT:
            self._give_up_oldest()

    def rejected(self, key_id: str, code: str) -> None:
        """Count a request that was turned away at the door: no record, only a number."""
        self._rejected[rejected_minute(time.time()), rejected_field(key_id, code)] += 1
        self._wake.set()

    def take_given_up(self) -> int:
        """Return how many records were given up since the last time this was asked."""
        count, self.given_up = self.given_up, 0
        return count

    @property
    def waiting(self) -> int:
        """Records that are not known to be in the books."""
        return len(self._pending) + len(self._under_way) + self._in_stream

    @property
    def _has_undelivered(self) -> bool:
        return bool(self._under_way or self._pending)

    async def start(self) -> None:
        """Begin to deliver."""
        self._task = asyncio.create_task(self._run(), name="usage outbox")

    async def close(self) -> None:
        """Deliver what is left, within a second."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self._has_undelivered:
                    self._wake.set()
                    await asyncio.sleep(0.02)
        await tasks.end(self._task)
        if self._has_undelivered:
            count = len(self._under_way) + len(self._pending)
            log.error("%d usage records could not be delivered", count)
        await self._redis.aclose()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(FLUSH_S)  # so that an engine step's endings go together
            if not await self._deliver():
                await asyncio.sleep(AWAY_S)

    async def _deliver(self) -> bool:
        """Bring to Redis what waits; False while it is away."""
        now_s = asyncio.get_running_loop().time()
        try:
            if now_s - self._looked_at >= LOOK_S or not self._epoch:
                self._looked_at = now_s
                await self._look()
            await self._flush()
            await self._flush_rejected()
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("usage waits for Redis: %s", type(error).__name__)
            self._epoch = ""
            return False
        return True

    async def _look(self) -> None:
        """Learn what the books have, and notice a Redis that lost its memory."""
        async with asyncio.timeout(5):
            run_id = str((await self._redis.info("server"))["run_id"])
            raw = await self._redis.eval(ENSURE_EPOCH, 1, EPOCH, secrets.token_hex(8))
            written: Any = await self._redis.get(WRITTEN)
        epoch = raw.decode() if isinstance(raw, bytes) else str(raw)
        if self._epoch != epoch or self._run_id != run_id:
            if self._run_id:
                # A restart from an older file keeps the epoch but may have lost the last entries.
                again = [record for together in self._appended for record in together.records]
                self._pending.extendleft(reversed(again))
                self._appended.clear()
                self._in_stream = 0
            self._epoch, self._run_id = epoch, run_id
        self._forget(written)

    def _forget(self, written: bytes | None) -> None:
        if not written:
            return
        position: list[Any] = json.loads(written)
        if position[:2] != [self._epoch, self._run_id]:
            return
        passed = _position(position[2])
        while self._appended and self._appended[0].last <= passed:
            self._in_stream -= len(self._appended.popleft().records)

    def _give_up_oldest(self) -> None:
        if self._appended:  # these lie in the stream at least
            count = len(self._appended.popleft().records)
            self._in_stream -= count
            self.given_up += count
        else:
            self._pending.popleft()
            self.given_up += 1

    async def _flush_rejected(self) -> None:
        counts, self._rejected = self._rejected, Counter()
        if not counts:
            return
        try:
            async with asyncio.timeout(5), self._redis.pipeline(transaction=False) as pipe:
                for (minute, field), count in counts.items():
                    pipe.hincrby(minute, field, count)
                for minute in {minute for minute, _ in counts}:
                    pipe.expire(minute, REJECTED_KEPT_S)
                await pipe.execute()
        except (RedisError, OSError, TimeoutError):
            if len(self._rejected) < KEPT_REJECTED:
                self._rejected += counts
            raise

    async def _flush(self) -> None:
        while self._has_undelivered:
            if not self._under_way:
                count = min(BATCH, len(self._pending))
                self._under_way = [self._pending.popleft() for _ in range(count)]
            async with asyncio.timeout(5):
                answer: Any = await self._redis.eval(
                    APPEND, 2, STREAM, WRITTEN, FIELD, b"\n".join(self._under_way)
                )
            # What is in the books up to the last of them is in the books up to each of them.
            last, written = answer
            self._appended.append(_Appended(self._under_way, _position(last.decode())))
            self._in_stream += len(self._under_way)
            self._under_way = []
            self._forget(written)
