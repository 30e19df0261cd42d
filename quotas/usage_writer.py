"""The usage writer: carries records from the Redis stream into the books, exactly once.

Rule 1: a record is in the books or still in the stream (or with its gateway, which appends it
        again until the published position has passed it); never in neither.
Rule 2: the position is stored in the transaction of the rows, and says which stream (epoch) of
        which server run it speaks of. In another epoch or run everything is read from the start:
        copies are harmless, gaps are not.
Rule 3: the stream is trimmed only behind the stored position, and only while its epoch is the
        one that was read.
Rule 4: any store may go away at any time; the writer waits and goes on by itself.

The loop also keeps the directory published (`ensure_published`), because it is the one process
that always runs and always looks at both stores.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import redis
import structlog
from django.db import DataError, connection
from django.db import Error as DatabaseError
from django.utils import timezone

from quotas import directory, rejections, stores, used
from quotas.services import usage
from quotas.services.usage import Overtaken, Position
from quotas.snapshots.directory import DIRECTORY
from quotas.snapshots.usage import EPOCH, FIELD, STREAM, WRITTEN
from quotas.usage_rows import BrokenRecord, Parsed, parse

log = structlog.get_logger(__name__)

BATCH = 5_000  # records in one transaction; bounds memory and time to commit
WAIT_MS = 500  # longest sleep on an empty stream
EACH_S = 1.0  # how often the directory is looked at
USED_EACH_S = 30.0  # how often the counters of day and month are published
# After a loss leases are taken over with what the books said when they were admitted; until all
# of those have ended and are written, the counters are published at every look.
USED_HURRY_S = 60.0
LONGEST_PAUSE_S = 5.0
BROKEN = "{l}:usage:broken"  # entries that are no records, the newest thousand
HEALTH = "fairway:usage:writer"  # what the status page shows of the writer

# Everything about one epoch in one step: FLUSHALL may come between any two commands.
_ADVANCE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[3], ARGV[2])
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Entries read from one stream at one moment, and the position they lead to."""

    start: Position  # as stored
    end: Position
    entries: tuple[tuple[str, bytes], ...]


class UsageWriter:
    """Reads, writes, advances; `step` is one round, `run` is for ever."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = stores.connect()
        self._clock = clock
        self._looked_at = float("-inf")
        self._used_at = float("-inf")
        self._generation: bytes | None = None
        self._hurry_until = float("-inf")
        self._batch = BATCH

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop, whatever the stores do."""
        pause_s = 0.1
        while not stop.is_set():
            try:
                self.step()
                pause_s = 0.1
            except Overtaken:
                continue
            except (redis.RedisError, DatabaseError, psycopg.Error, OSError) as error:
                log.warning("usage_writer_waits", error=str(error), pause_s=pause_s)
                connection.close()  # broken or not: the next round takes a good one
                stop.wait(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def step(self) -> int:
        """Write what the stream holds; return how many entries that were."""
        self._look_after_directory()
        reading = self._read()
        if not reading.entries and reading.start == reading.end:
            self._advance(reading.end)
            self._wait(reading.end)
            return 0
        parsed = list(self._parse(reading))
        written = self._write(reading, parsed)
        self._advance(reading.end)
        usage.touch_keys(used_at=_last_uses(parsed))
        log.info(
            "usage_written",
            fresh=written.fresh,
            replaced=written.replaced,
            copies=written.copies,
            stream_id=reading.end.stream_id,
        )
        return len(reading.entries)

    def _look_after_directory(self) -> None:
        now = self._clock()
        if now - self._looked_at < EACH_S:
            return
        if directory.ensure_published():
            log.info("directory_published")
        generation: Any = self._redis.hget(DIRECTORY, "generation")
        if generation != self._generation:
            self._generation, self._hurry_until = generation, now + USED_HURRY_S
        rejections.collect(self._redis, now_s=time.time())
        self._publish_used(now)
        self._redis.hset(HEALTH, mapping={"at": time.time(), "waiting": self._redis.xlen(STREAM)})
        self._looked_at = now

    def _publish_used(self, now: float) -> None:
        """Tell the gateways the books' counters again; it heals what a loss left uncounted."""
        if now - self._used_at >= USED_EACH_S or now < self._hurry_until:
            self._used_at = now
            if used.is_needed():
                used.publish(now=timezone.now())

    def _read(self) -> Reading:
        """Read the entries behind the stored position, or all of them in a new epoch or run."""
        stored = usage.position()
        start_id = f"({stored.stream_id}"
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(EPOCH, secrets.token_hex(8), nx=True)
            pipe.get(EPOCH)
            pipe.info("server")
            pipe.xrange(STREAM, min=start_id, count=self._batch)
            _, raw_epoch, info, entries = pipe.execute()
        here = Position(raw_epoch.decode(), str(info["run_id"]), "0-0")
        if here != replace(stored, stream_id="0-0"):
            # Another stream, or this one after a restart: the entries left are few, read all.
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.get(EPOCH)
                pipe.xrange(STREAM, count=self._batch)
                again, entries = pipe.execute()
            if again != raw_epoch:
                raise Overtaken
            end = here
        else:
            end = stored
        found = tuple((entry_id.decode(), _field(fields)) for entry_id, fields in entries)
        if found:
            end = replace(end, stream_id=found[-1][0])
        return Reading(start=stored, end=end, entries=found)

    def _parse(self, reading: Reading) -> Iterator[Parsed]:
        for entry_id, raw in reading.entries:
            try:
                yield parse(raw)
            except BrokenRecord as error:
                self._set_aside(entry_id, raw, error)

    def _write(self, reading: Reading, parsed: list[Parsed]) -> usage.Written:
        """Write the records; should PostgreSQL refuse one, find it alone and set it aside."""
        try:
            written = usage.write(parsed=parsed, before=reading.start, after=reading.end)
        except (DataError, psycopg.DataError) as error:
            if len(reading.entries) > 1:
                self._batch = 1
                raise Overtaken from error
            self._set_aside(*reading.entries[0], error)
            written = usage.write(parsed=[], before=reading.start, after=reading.end)
        self._batch = min(self._batch * 2, BATCH)
        return written

    def _set_aside(self, entry_id: str, raw: bytes, error: Exception) -> None:
        log.error("usage_record_broken", stream_id=entry_id, error=str(error))
        self._redis.lpush(BROKEN, raw)
        self._redis.ltrim(BROKEN, 0, 999)

    def _advance(self, end: Position) -> None:
        """Publish the position and trim the stream behind it."""
        milliseconds, _, number = end.stream_id.partition("-")
        self._redis.eval(
            _ADVANCE,
            3,
            STREAM,
            EPOCH,
            WRITTEN,
            end.epoch,
            json.dumps([end.epoch, end.run_id, end.stream_id]),
            f"{milliseconds}-{int(number) + 1}",
        )

    def _wait(self, end: Position) -> None:
        """Sleep until something is appended, at most half a second."""
        self._redis.xread({STREAM: end.stream_id}, count=1, block=WAIT_MS)


def _field(fields: dict[bytes, bytes]) -> bytes:
    return fields.get(FIELD, b"")


def _last_uses(parsed: list[Parsed]) -> dict[str, Any]:
    latest: dict[str, Any] = {}
    for item in parsed:
        if item.key_id not in latest or latest[item.key_id] < item.arrived_at:
            latest[item.key_id] = item.arrived_at
    return latest
