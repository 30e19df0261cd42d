"""The event loop that keeps lines at the gateway. It outlives the Celery task that began it.

A batch line may wait more than ten minutes for its turn and would lose its age if its request
were broken off, so the loop lives as long as its process has lines out, while tasks (at most four
minutes each) only watch over it.

Rule 1: one turn at a time talks to the database: everything that ended since the last turn is
stored in one transaction, then new lines are claimed. More load makes larger turns, not more.
Rule 2: the database being away stops claims, not requests: answers are kept and stored later.
Rule 3: nothing here decides; verdicts, windows and claims are other files'.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection

from portal.batches import results
from portal.batches.runner import store
from portal.batches.runner.client import Flow, GatewayClient, request_body
from portal.batches.runner.lane import LaneRun
from portal.batches.runner.store import Claimed, Ended, Work
from portal.batches.runner.verdict import MOST_FAILURES, Answer, Kind, Verdict, judge
from portal.batches.runner.window import Window
from portal.files.shelf import LineSource

log = structlog.get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

TURN_S = 0.5  # longest pause between turns
GATHER_S = 0.005  # after the first end: what ends together is stored together
LOOK_S = 0.4  # between readings of the gateway's queue
JOBS_S = 1.0  # between readings of a lane's jobs
IDLE_S = 3.0  # without lines: the loop ends
DRAIN_S = 3.0  # after a stop: time for lines in flight to end by themselves
LANES_MOST = 200
SUSPECT_PATIENCE_S = 300.0
SOURCES_MOST = 64  # input files kept open
BACKOFF_S = (2.0, 8.0, 30.0)  # before a line that broke is tried again


class Room:
    """One runner. `run` returns when there is nothing left to do, or soon after `stop`."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self.name = f"runner-{uuid.uuid4().hex[:16]}"
        self.is_stopping = is_stopping
        self.lanes: dict[int, LaneRun] = {}
        self.ended: list[Ended] = []
        self.sends: dict[asyncio.Task[None], Claimed] = {}
        self.sources: dict[str, LineSource] = {}
        self.writes: set[asyncio.Task[None]] = set()
        self.wake = asyncio.Event()
        self.alone: asyncio.Task[None] | None = None  # a suspect that nothing runs beside
        self.crowded_since_s = time.monotonic()
        self.lanes_read_s = -1e9
        self._database = ThreadPoolExecutor(1, thread_name_prefix="batch-rows")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="batch-files")
        self.client: GatewayClient

    async def run(self) -> None:
        """Work until there is nothing to do."""
        self.client = GatewayClient.open()
        helpers = [asyncio.create_task(self._heartbeat()), asyncio.create_task(self._look())]
        try:
            await self._turns()
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._leave()

    async def _turns(self) -> None:
        idle_since = time.monotonic()
        while not self.is_stopping():
            self.wake.clear()
            try:
                await self._turn()
            except (OperationalError, InterfaceError) as error:
                log.warning("rows_unreachable", error=str(error)[:200])
                await asyncio.sleep(TURN_S)
            now = time.monotonic()
            if self.sends or self.ended or self.lanes or self.writes:
                idle_since = now
            elif now - idle_since > IDLE_S:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), TURN_S)
            await asyncio.sleep(GATHER_S)

    async def _turn(self) -> None:
        await self._store_ended()
        now = time.monotonic()
        if now - self.lanes_read_s > TURN_S:
            self.lanes_read_s = now
            for owner_id in await self._db(store.claim_lanes, self.name, LANES_MOST):
                self.lanes[owner_id] = LaneRun(owner_id, Window(settings.BATCH_WINDOW_MOST))
        if self.alone is None or self.alone.done():
            self.alone = None
            for lane in list(self.lanes.values()):
                await self._fill(lane, now)
            await self._try_suspect(now)

    async def _store_ended(self) -> None:
        if not self.ended:
            return
        batch, self.ended = self.ended, []
        try:
            ready = await self._db(store.finish, batch)
        except (OperationalError, InterfaceError):
            self.ended = batch + self.ended
            raise
        for job_pk in ready:
            self._write_results(job_pk)

    async def _fill(self, lane: LaneRun, now: float) -> None:
        """Claim as many lines as the window has room for, and send them."""
        if now - lane.jobs_read_s > JOBS_S:
            jobs = await self._db(store.jobs_to_send, lane.owner_id)
            lane.jobs, lane.jobs_read_s = {work.job_pk: work for work in jobs}, now
            lane.suspect_jobs = dict(lane.jobs)
        for job_pk, share in lane.next_jobs(lane.window.room(now)).items():
            work = lane.jobs[job_pk]
            claimed = await self._db(store.claim, self.name, work, share)
            if len(claimed) < share:
                lane.jobs.pop(job_pk, None)  # read again soon: it may get lines back
            for line in claimed:
                self._send(lane, line)
        await self._leave_idle_lane(lane, now)

    async def _try_suspect(self, now: float) -> None:
        """Send a line that may be what kills runners: alone, or beside others after patience."""
        if not self.sends:
            self.crowded_since_s = now
        elif now - self.crowded_since_s < SUSPECT_PATIENCE_S:
            return
        jobs = {pk: work for lane in self.lanes.values() for pk, work in lane.suspect_jobs.items()}
        line = await self._db(store.claim_suspect, self.name, jobs) if jobs else None
        if line is None:
            return
        self.crowded_since_s = now
        was_alone = not self.sends
        task = self._send(self.lanes[line.work.owner_id], line)
        self.alone = task if was_alone else None

    async def _leave_idle_lane(self, lane: LaneRun, now: float) -> None:
        if lane.window.outstanding or lane.jobs:
            lane.idle_since_s = None
            return
        if lane.idle_since_s is None:
            lane.idle_since_s = now
        elif now - lane.idle_since_s > JOBS_S:
            del self.lanes[lane.owner_id]
            await self._db(store.release_lanes, self.name, [lane.owner_id])

    def _send(self, lane: LaneRun, line: Claimed) -> asyncio.Task[None]:
        lane.window.sent()
        lane.out[line.work.job_pk] = lane.out.get(line.work.job_pk, 0) + 1
        task = asyncio.create_task(self._send_one(lane, line))
        self.sends[task] = line
        task.add_done_callback(lambda task: self.sends.pop(task, None))
        return task

    async def _send_one(self, lane: LaneRun, line: Claimed) -> None:
        sent_s = time.monotonic()
        try:
            body = self._body(line)
            answer = await self.client.send(line.work, body)
        except OSError as error:
            # The input cannot be read: another machine's folder, or a file that is gone.
            answer = Answer(0, trouble=f"the input file cannot be read: {error.strerror}")
        except asyncio.CancelledError:
            await self._quietly(store.give_back, line)
            raise
        finally:
            lane.window.ended(time.monotonic() - sent_s)
            lane.out[line.work.job_pk] -= 1
        await self._conclude(lane, line, judge(answer))
        self.wake.set()

    def _body(self, line: Claimed) -> bytes:
        name = line.work.input_name
        source = self.sources.pop(name, None) or LineSource(name)
        self.sources[name] = source  # the last one used is the last one closed
        if len(self.sources) > SOURCES_MOST:
            self.sources.pop(next(iter(self.sources))).close()
        return request_body(source.read(line.offset, line.length))

    async def _conclude(self, lane: LaneRun, line: Claimed, verdict: Verdict) -> None:
        is_last_try = line.failures + 1 >= MOST_FAILURES
        if verdict.kind in {Kind.DONE, Kind.FAILED} or (verdict.kind is Kind.BROKE and is_last_try):
            self.ended.append(Ended(line, verdict))
        elif verdict.kind is Kind.BROKE:
            wait = BACKOFF_S[min(line.failures, len(BACKOFF_S) - 1)]
            await self._quietly(store.give_back, line, charge=1, after_s=wait)
        else:
            lane.jobs.pop(line.work.job_pk, None)
            await self._quietly(store.give_back, line)
            await self._hold(line.work, verdict)

    async def _hold(self, work: Work, verdict: Verdict) -> None:
        wait = store.PAUSED_S if verdict.kind is Kind.PAUSE else verdict.wait_s
        await self._quietly(
            store.hold, work.job_pk, code=verdict.code, message=verdict.message, wait_s=wait
        )

    async def _quietly(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do what the lease's end would do anyway, some seconds later, if it fails."""
        with contextlib.suppress(OperationalError, InterfaceError):
            await asyncio.shield(self._db(act, *args, **kwargs))

    async def _db(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._database, lambda: _guarded(act, *args, **kwargs))

    def _write_results(self, job_pk: int) -> None:
        async def write() -> None:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(OperationalError, InterfaceError):
                await loop.run_in_executor(
                    self._writer, lambda: _guarded(results.write_results, job_pk)
                )

        task = asyncio.create_task(write())
        self.writes.add(task)
        task.add_done_callback(self.writes.discard)

    async def _heartbeat(self) -> None:
        """Renew the leases; break off what is no longer ours, or is overdue."""
        while True:
            await asyncio.sleep(settings.BATCH_LEASE_S / 4)
            try:
                held = await self._db(store.renew, self.name)
                over = await self._db(store.jobs_overdue, {c.work.job_pk for c in self.out()})
                for job_pk in await self._db(results.jobs_to_write):
                    self._write_results(job_pk)
            except (OperationalError, InterfaceError):
                continue
            for task, line in list(self.sends.items()):
                if line.work.owner_id not in held or line.work.job_pk in over:
                    task.cancel()
            for owner_id in set(self.lanes) - held:
                del self.lanes[owner_id]

    def out(self) -> list[Claimed]:
        """Return the lines that are at the gateway."""
        return list(self.sends.values())

    async def _look(self) -> None:
        """Read how many lines of each person are in flight and wait at the gateway."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self.sends:
                continue
            flows = await self.client.flows()
            if flows is None:
                continue
            now = time.monotonic()
            for lane in self.lanes.values():
                flow = flows.get(str(lane.owner_id), Flow())
                lane.window.read(flow.in_flight, flow.waiting, now)
            self.wake.set()

    async def _leave(self) -> None:
        """Store what has ended, break off the rest without charging it, give the lanes back."""
        if self.sends:
            await asyncio.wait(list(self.sends), timeout=DRAIN_S)
        for task in list(self.sends):
            task.cancel()
        await asyncio.gather(*self.sends, *self.writes, return_exceptions=True)
        with contextlib.suppress(OperationalError, InterfaceError):
            await self._store_ended()
            await self._db(store.release_lanes, self.name, list(self.lanes))
        await asyncio.gather(*self.writes, return_exceptions=True)
        await self.client.close()
        for source in self.sources.values():
            source.close()
        for pool in (self._database, self._writer):
            pool.submit(lambda: connection.close())  # or the connection pool loses a place
            pool.shutdown()


def _guarded(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a database call so that a broken connection does not outlive it.

    A whole connection is kept by its thread until the room closes: a check-out per call would
    cost a round trip each.
    """
    try:
        return act(*args, **kwargs)
    except (OperationalError, InterfaceError):
        connection.close()
        raise
