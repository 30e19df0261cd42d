"""Publishes the books to Redis for the gateways.

Rule 1: everything of one publication is written in one MULTI; a reader that sees a generation
        sees all of it.
Rule 2: publications take a lock in PostgreSQL and read after they hold it, so an older picture
        never overwrites a newer one; a WATCH guards against a publisher that slept through
        losing its lock.
Rule 3: the version never goes back. A database restored from a backup is lifted above what
        Redis has seen.
Rule 4: publishing may fail; a change in the books may not fail because of it. Whoever calls
        `ensure_published` (the usage writer, each second) repairs it.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import redis
import structlog
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from quotas import stores, used
from quotas.models import DirectoryVersion
from quotas.picture import Picture, Scope, take
from quotas.snapshots.directory import CHANGED, DIRECTORY, KEYS, KeyWriter, to_json

log = structlog.get_logger(__name__)

_LOCK = 0x66770001  # of pg_advisory_xact_lock; any number that is only ours
NEXT_CHANGE = "next_change"  # field of DIRECTORY: when a time-limited row ends, Unix seconds
_BATCH = 500  # keys per HSET, so that no single command is large


def publish_soon(scope: Scope | None, gone: Collection[str] = ()) -> None:
    """Publish now if the stores allow it; otherwise leave it to `ensure_published`."""
    try:
        publish(scope, gone, is_forced=False)
    except (redis.RedisError, DatabaseError) as error:
        log.warning("directory_not_published", error=str(error))


def publish(
    scope: Scope | None = None,
    gone: Collection[str] = (),
    *,
    now: dt.datetime | None = None,
    is_forced: bool = True,
) -> int:
    """Write the books' present state to Redis and return its version.

    With a scope only its keys are written and the digests in `gone` removed, provided Redis lacks
    nothing but this change. Unless forced, nothing is written when a later publication has
    carried the change along.
    """
    client = stores.connect()
    while True:
        with transaction.atomic():
            _execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            with client.pipeline(transaction=True) as pipe:
                pipe.watch(DIRECTORY)  # type: ignore[no-untyped-call]
                seen = _read(pipe)
                version = _version_above(seen)
                if seen.generation and seen.version == version:
                    if not is_forced:
                        return version
                    # Gateways read again what has a new version, and nothing else: a limit that
                    # ended, or a reservation that begins, needs one as much as an edit does.
                    version = _set_version(version + 1)
                if not seen.generation or seen.version != version - 1 or is_forced:
                    scope = None
                picture = take(now or timezone.now(), version, scope)
                at = now or timezone.now()
                # Counters must be there before the limit is that counts on them: after a loss of
                # the directory, and when the first limit of a day or month is set.
                if not seen.generation or (used.is_old(client, now=at) and used.is_needed()):
                    used.publish(now=at)
                try:
                    _write(pipe, seen.generation, picture, None if scope is None else gone)
                except redis.WatchError:
                    continue
        return version


def ensure_published(*, now: dt.datetime | None = None) -> bool:
    """Publish if Redis lost the directory, is behind it, or a limit has ended; say whether."""
    now = now or timezone.now()
    seen = _read(stores.connect())
    if seen.generation and now.timestamp() < seen.next_change and seen.version == _version():
        return False
    publish(now=now)
    return True


@dataclass(frozen=True, slots=True)
class _Seen:
    generation: str
    version: int
    next_change: float


def _read(client: redis.Redis) -> _Seen:
    raw: list[Any] = client.hmget(DIRECTORY, ["generation", "version", NEXT_CHANGE])
    generation, version, next_change = raw
    return _Seen(
        generation=generation.decode() if generation else "",
        version=int(version or 0),
        next_change=float(next_change or "inf"),
    )


def _version() -> int:
    return DirectoryVersion.objects.values_list("version", flat=True).first() or 0


def _version_above(seen: _Seen) -> int:
    """Return the books' version, lifted if Redis has already seen a larger one."""
    version = _version()
    if version and version >= seen.version:
        return version
    return _set_version(max(version, seen.version) + 1)


def _set_version(version: int) -> int:
    if not DirectoryVersion.objects.filter(id=1).update(version=version):
        DirectoryVersion.objects.create(id=1, version=version)
    return version


def _write(
    pipe: redis.client.Pipeline, generation: str, picture: Picture, gone: Collection[str] | None
) -> None:
    """Write the picture in one MULTI; `gone` None: it is whole, and what it lacks must go."""
    pipe.multi()
    if gone is None:
        pipe.delete(KEYS)
    elif gone:
        pipe.hdel(KEYS, *gone)  # first: one that is still good comes back below
    encode = KeyWriter()
    for part in _parts(list(picture.keys.items())):
        pipe.hset(KEYS, mapping={digest: encode.json(key) for digest, key in part})
    pipe.hset(
        DIRECTORY,
        mapping={
            "generation": generation or secrets.token_hex(8),
            "version": str(picture.fleet.version),
            "fleet": to_json(picture.fleet),
            NEXT_CHANGE: "inf" if picture.next_change is None else repr(picture.next_change),
        },
    )
    pipe.publish(CHANGED, str(picture.fleet.version))
    pipe.execute()


def _parts(items: list[tuple[str, Any]]) -> Iterable[list[tuple[str, Any]]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def _execute(sql: str, parameters: list[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
