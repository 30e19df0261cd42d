"""The event loop that keeps lines at the gateway. It outlives the Celery task that began it.

A batch line may wait more than ten minutes for its turn and would lose its age if its request
were broken off, so the loop lives as long as its process has lines out, while tasks (at most four
minutes each) only watch over it.

Rule 1: one turn at a time talks to the database: everything that ended since the last turn is
stored and new lines are taken, in one transaction. More load makes larger turns, not more.
Rule 2: no line waits for the database: lines are taken a little ahead (`lane`), and the end of one
sends the next at once.
Rule 3: the database being away stops claims, not requests: answers are kept and stored later.
Rule 4: nothing here decides; verdicts, windows and claims are other files'.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError

from portal.batches import results
from portal.batches.runner import store
from portal.batches.runner.body import request_body
from portal.batches.runner.client import Flow, GatewayClient
from portal.batches.runner.lane import LaneRun
from portal.batches.runner.rows import Rows
from portal.batches.runner.store import Claimed, Ended
from portal.batches.runner.verdict import MOST_FAILURES, Answer, Kind, Verdict, judge
from portal.batches.runner.window import Window
from portal.files.shelf import LineSource

log = structlog.get_logger(__name__)

TURN_S = 0.5  # longest pause between turns
GATHER_S = 0.1  # what ends in this time is stored together, while lines taken ahead last
HURRY_S = 0.005  # the same, when lines are wanted
LOOK_S = 0.4  # between readings of the gateway's queue
LOOK_AGAIN_S = 0.1  # while the gateway takes all it is sent and more may be sent
JOBS_S = 1.0  # between readings of the jobs
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
        self.wake = asyncio.Event()
        self.alone: asyncio.Task[None] | None = None  # a suspect that nothing runs beside
        self.crowded_since_s = time.monotonic()
        self.lanes_read_s = self.jobs_read_s = -1e9
        self.rows = Rows()
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
            if self.sends or self.ended or self.lanes or self.rows.writes:
                idle_since = now
            elif now - idle_since > IDLE_S:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), TURN_S)
            await self._gather()

    async def _gather(self) -> None:
        """Let more lines end before the next turn, unless somebody runs out of lines."""
        for _ in range(round(GATHER_S / HURRY_S)):
            await asyncio.sleep(HURRY_S)
            if self._is_hungry():
                return

    def _is_hungry(self) -> bool:
        now = time.monotonic()
        return any(
            lane.jobs and not lane.ready and lane.window.room(now) for lane in self.lanes.values()
        )

    async def _turn(self) -> None:
        await self._read_lanes()
        now = time.monotonic()
        wishes = []
        if self.alone is None or self.alone.done():
            self.alone = None
            for lane in self.lanes.values():
                wishes += [(lane.jobs[pk], count) for pk, count in lane.wanted(now).items()]
        if self.ended or wishes:
            await self._store_and_take(wishes)
        for lane in list(self.lanes.values()):
            self._pump(lane)
            await self._leave_idle_lane(lane, now)
        if self.alone is None:
            await self._try_suspect(now)

    async def _read_lanes(self) -> None:
        """Look now and then for lanes nobody holds, and which jobs of ours may send."""
        now = time.monotonic()
        if now - self.lanes_read_s > TURN_S:
            self.lanes_read_s = now
            new = await self.rows.do(store.claim_lanes, self.name, LANES_MOST)
            for owner_id in new:
                self.lanes[owner_id] = LaneRun(owner_id, Window(settings.BATCH_WINDOW_MOST))
                self.jobs_read_s = -1e9
        if self.lanes and now - self.jobs_read_s > JOBS_S:
            jobs = await self.rows.do(store.jobs_to_send, list(self.lanes))
            self.jobs_read_s = now
            for owner_id, works in jobs.items():
                if owner_id in self.lanes and (back := self.lanes[owner_id].read(works)):
                    await self.rows.quietly(store.give_back, back)

    async def _store_and_take(self, wishes: list[tuple[store.Work, int]]) -> None:
        ended, self.ended = self.ended, []
        try:
            complete, claimed = await self.rows.do(store.turn, self.name, ended, wishes)
        except (OperationalError, InterfaceError):
            self.ended = ended + self.ended
            raise
        for job_pk in complete:
            self.rows.write_results(job_pk)
        taken = Counter(line.work.job_pk for line in claimed)
        for work, count in wishes:
            lane = self.lanes.get(work.owner_id)
            if lane is not None and taken[work.job_pk] < count:
                lane.jobs.pop(work.job_pk, None)  # read again soon: it may get lines back
        orphans = []  # of lanes that were lost meanwhile
        for line in claimed:
            lane = self.lanes.get(line.work.owner_id)
            if lane is None:
                orphans.append(line)
            else:
                lane.keep(line)
        if orphans:
            await self.rows.quietly(store.give_back, orphans)

    def _pump(self, lane: LaneRun) -> None:
        """Send as many of the lines at hand as the window has room for."""
        if self.alone is not None and not self.alone.done():
            return
        for _ in range(lane.window.room(time.monotonic())):
            line = lane.next_line()
            if line is None:
                return
            self._send(lane, line)

    async def _try_suspect(self, now: float) -> None:
        """Send a line that may be what kills runners: alone, or beside others after patience."""
        if not self.sends:
            self.crowded_since_s = now
        elif now - self.crowded_since_s < SUSPECT_PATIENCE_S:
            return
        jobs = {pk: work for lane in self.lanes.values() for pk, work in lane.suspect_jobs.items()}
        line = await self.rows.do(store.claim_suspect, self.name, jobs) if jobs else None
        if line is None:
            return
        lane = self.lanes.get(line.work.owner_id)
        if lane is None:  # lost meanwhile
            await self.rows.quietly(store.give_back, [line])
            return
        self.crowded_since_s = now
        was_alone = not self.sends
        task = self._send(lane, line)
        self.alone = task if was_alone else None

    async def _leave_idle_lane(self, lane: LaneRun, now: float) -> None:
        if lane.window.outstanding or lane.jobs or lane.ready:
            lane.idle_since_s = None
            return
        if lane.idle_since_s is None:
            lane.idle_since_s = now
        elif now - lane.idle_since_s > JOBS_S:
            self.lanes.pop(lane.owner_id, None)
            await self.rows.do(store.release_lanes, self.name, [lane.owner_id])

    def _send(self, lane: LaneRun, line: Claimed) -> asyncio.Task[None]:
        lane.sent(line)
        task = asyncio.create_task(self._send_one(lane, line))
        self.sends[task] = line
        task.add_done_callback(self._sent)
        return task

    def _sent(self, task: asyncio.Task[None]) -> None:
        self.sends.pop(task, None)

    async def _send_one(self, lane: LaneRun, line: Claimed) -> None:
        sent_s = time.monotonic()
        try:
            verdict = judge(await self._answer(line))
        except asyncio.CancelledError:
            await self.rows.quietly(store.give_back, [line])
            raise
        except Exception as error:
            # Memory that ran out, or a fault of ours: kept to the line that met it, three times.
            log.exception("line_broke", batch=line.work.public_id, line=line.line_no)
            verdict = judge(Answer(0, trouble=f"its runner met {type(error).__name__}"))
        finally:
            lane.ended(line, time.monotonic() - sent_s)
        if verdict.kind in {Kind.DONE, Kind.FAILED}:
            self.ended.append(Ended(line, verdict))
            self._pump(lane)
        else:
            await self._conclude(lane, line, verdict)
        self.wake.set()

    async def _answer(self, line: Claimed) -> Answer:
        try:
            return await self.client.send(line.work, self._body(line))
        except OSError as error:
            # The input cannot be read: another machine's folder, or a file that is gone.
            return Answer(0, trouble=f"the input file cannot be read: {error.strerror}")

    def _body(self, line: Claimed) -> bytes:
        name = line.work.input_name
        source = self.sources.get(name)
        if source is None:
            source = self.sources[name] = LineSource(name)
            if len(self.sources) > SOURCES_MOST:
                self.sources.pop(next(iter(self.sources))).close()  # the one opened first
        return request_body(source.read(line.offset, line.length))

    async def _conclude(self, lane: LaneRun, line: Claimed, verdict: Verdict) -> None:
        """Deal with an answer that does not end its line."""
        if verdict.kind is Kind.BROKE and line.failures + 1 >= MOST_FAILURES:
            self.ended.append(Ended(line, verdict))
        elif verdict.kind is Kind.BROKE:
            wait = BACKOFF_S[min(line.failures, len(BACKOFF_S) - 1)]
            await self.rows.quietly(store.give_back, [line], charge=1, after_s=wait)
        else:
            back = [line, *lane.drop(line.work.job_pk)]
            await self.rows.quietly(store.give_back, back)
            wait = store.PAUSED_S if verdict.kind is Kind.PAUSE else verdict.wait_s
            await self.rows.quietly(
                store.hold,
                line.work.job_pk,
                code=verdict.code,
                message=verdict.message,
                wait_s=wait,
            )

    async def _heartbeat(self) -> None:
        """Renew the leases; break off what is no longer ours, or is overdue."""
        while True:
            await asyncio.sleep(settings.BATCH_LEASE_S / 4)
            self.client.give_up()
            try:
                held = await self.rows.do(store.renew, self.name)
                over = await self.rows.do(
                    store.jobs_overdue, {c.work.job_pk for c in self.sends.values()}
                )
                for job_pk in await self.rows.do(results.jobs_to_write):
                    self.rows.write_results(job_pk)
            except (OperationalError, InterfaceError):
                continue
            for task, line in list(self.sends.items()):
                if line.work.owner_id not in held or line.work.job_pk in over:
                    task.cancel()
            for owner_id in set(self.lanes) - held:
                await self._let_go(self.lanes.pop(owner_id))

    async def _let_go(self, lane: LaneRun) -> None:
        """Give back the lines taken ahead."""
        if back := lane.read([]):
            await self.rows.quietly(store.give_back, back)

    async def _look(self) -> None:
        """Read how many lines of each person are in flight and wait at the gateway."""
        pause_s = LOOK_AGAIN_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = LOOK_S
            if not self.sends:
                pause_s = LOOK_AGAIN_S
                continue
            flows = await self.client.flows()
            if flows is None:
                continue
            now = time.monotonic()
            for lane in self.lanes.values():
                flow = flows.get(str(lane.owner_id), Flow())
                if lane.window.read(flow.in_flight, flow.waiting, now) and lane.jobs:
                    pause_s = LOOK_AGAIN_S
                self._pump(lane)
            self.wake.set()

    async def _leave(self) -> None:
        """Store what has ended, break off the rest without charging it, give the lanes back."""
        if self.sends:
            await asyncio.wait(list(self.sends), timeout=DRAIN_S)
        for task in list(self.sends):
            task.cancel()
        await asyncio.gather(*self.sends, *self.rows.writes, return_exceptions=True)
        with contextlib.suppress(OperationalError, InterfaceError):
            for lane in self.lanes.values():
                await self._let_go(lane)
            if self.ended:
                await self._store_and_take([])
            await self.rows.do(store.release_lanes, self.name, list(self.lanes))
        self.client.close()
        await self.rows.close()
        for source in self.sources.values():
            source.close()
