"""The outbox: every record into the stream, and kept until the books have it, no longer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio as redis

from gateway import usage
from gateway.usage import Outbox
from quotas.snapshots.usage import EPOCH, FIELD, STREAM, WRITTEN


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[redis.Redis]:
    """Return a client of the store the outbox delivers to."""
    async with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def outbox(
    redis_url: str, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Outbox]:
    """Return a running outbox that looks often."""
    monkeypatch.setattr(usage, "LOOK_S", 0.2)
    outbox = Outbox(redis.Redis.from_url(redis_url))
    await outbox.start()
    yield outbox
    await outbox.close()


async def delivered(store: redis.Redis, count: int) -> list[str]:
    """Wait until the stream holds as many records; return them in its order."""
    for _ in range(500):
        entries: Any = await store.xrange(STREAM)
        if len(entries) >= count:
            return [fields[FIELD].decode() for _, fields in entries]
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(entries)} of {count} records came")


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for it."""
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to pass")


async def write_books(store: redis.Redis) -> None:
    """Tell what the usage writer tells when all that is in the stream is in the books."""
    epoch: Any = await store.get(EPOCH)
    run_id = (await store.info("server"))["run_id"]
    last = (await store.xinfo_stream(STREAM))["last-generated-id"].decode()
    await store.set(WRITTEN, json.dumps([epoch.decode(), run_id, last]))


async def test_records_reach_the_stream_in_their_order(outbox: Outbox, store: redis.Redis) -> None:
    """More than one append carries at once, too."""
    records = [f'{{"n":{number}}}' for number in range(2 * usage.BATCH + 1)]
    for one in records:
        outbox.append(one.encode())
    assert await delivered(store, len(records)) == records
    await until(lambda: outbox.waiting == len(records))


async def test_a_record_is_kept_until_the_books_have_it(outbox: Outbox, store: redis.Redis) -> None:
    """Being in the stream is not enough; the position of the books lets it go within a look."""
    outbox.append(b"{}")
    await delivered(store, 1)
    await asyncio.sleep(usage.LOOK_S * 1.5)
    assert outbox.waiting == 1
    await write_books(store)
    await until(lambda: outbox.waiting == 0)


async def test_an_append_tells_what_the_books_have(
    outbox: Outbox, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load memory is let go with each append, not at the next look."""
    outbox.append(b"first")
    await delivered(store, 1)
    await write_books(store)
    monkeypatch.setattr(usage, "LOOK_S", 3600.0)
    outbox.append(b"second")
    await delivered(store, 2)
    await until(lambda: outbox.waiting == 1)


async def test_what_the_books_of_another_stream_have_is_not_what_ours_have(
    outbox: Outbox, store: redis.Redis
) -> None:
    """A position names its epoch and run; one of another stream lets nothing go."""
    outbox.append(b"{}")
    await delivered(store, 1)
    await store.set(WRITTEN, json.dumps(["another", "stream", "99999999999999-0"]))
    outbox.append(b"{}")
    await delivered(store, 2)
    await asyncio.sleep(usage.LOOK_S * 1.2)
    assert outbox.waiting == 2


async def test_records_the_ledger_appended_come_again_after_a_loss(
    outbox: Outbox, store: redis.Redis
) -> None:
    """A store that lost its memory gets every copy, oldest first."""
    outbox.append(b"own")
    await delivered(store, 1)
    last = (await store.xinfo_stream(STREAM))["last-generated-id"].decode()
    head, _, _ = last.partition("-")
    for number in range(3):  # two in one millisecond, one later
        outbox.keep(b"by the ledger %d" % number, f"{int(head) + 1 + number // 2}-{number}")
    assert outbox.waiting == 4
    await store.flushall()
    assert await delivered(store, 4) == [
        "own", "by the ledger 0", "by the ledger 1", "by the ledger 2",
    ]  # fmt: skip


async def test_beyond_its_bound_the_oldest_are_given_up_and_counted(
    outbox: Outbox, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First those that lie in the stream, and what went there together goes together."""
    monkeypatch.setattr(usage, "KEPT", 3)
    for number in range(3):
        outbox.append(b"%d" % number)
    await delivered(store, 3)
    await until(lambda: not outbox._under_way)
    outbox.append(b"3")
    assert (outbox.waiting, outbox.take_given_up(), outbox.take_given_up()) == (1, 3, 0)
    assert await delivered(store, 4) == ["0", "1", "2", "3"]
