"""Measures what an engine can do: `manage.py measurecapacity smollm2-1`."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import datetime as dt
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q
from django.utils import timezone
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway.measure.drive import Stopped
from gateway.measure.hold import GatewayHold, NoHold
from gateway.measure.report import PointReport, Report, Sample
from gateway.measure.session import Session, Subject, Wishes
from quotas.models import CapacityRun, Replica
from quotas.services import announced, capacity, engines
from quotas.snapshots.credentials import Credential, sign

STOP_POLL_S = 1.0
PR_SET_PDEATHSIG = 1


class Books:
    """Keeps the records of a run in the database; tells the terminal."""

    def __init__(self, run: CapacityRun, progress: Progress) -> None:
        self._run = run
        self._progress = progress
        self._task = progress.add_task("holding the engine", total=None)
        self.report: Report | None = None

    async def began(
        self,
        plan: Mapping[str, Any],
        marks: Mapping[str, str],
        name: str,
        steps: int,
        left_s: float,
    ) -> None:
        """Keep plan and fingerprint; the run is announced from here on."""
        begun = await sync_to_async(capacity.begin)(
            run=self._run,
            plan=plan,
            fingerprint=marks,
            digest=name,
            steps_total=steps,
            duration_s=left_s,
        )
        if not begun:
            raise Stopped
        self._progress.update(self._task, total=steps)

    async def sampled(self, sample: Sample, done: int, total: int, left_s: float) -> None:
        """Keep one step's raw data."""
        await sync_to_async(capacity.add_sample)(
            run=self._run,
            step=sample.step,
            kind=sample.kind,
            prompt_tokens=sample.point.prompt_tokens,
            concurrency=sample.point.concurrency,
            repeat=sample.repeat,
            answers=[asdict(answer) for answer in sample.answers],
            steps_done=done,
            expected_end_at=timezone.now() + dt.timedelta(seconds=left_s),
        )
        what = f"{sample.point.prompt_tokens} tokens x {sample.point.concurrency}"
        self._progress.update(self._task, completed=done, description=what)

    async def ended(self, state: str, reason: str, found: Report | None) -> None:
        """Keep the end and what follows from the samples."""
        self.report = found
        await sync_to_async(capacity.end)(
            run=self._run,
            state=state,
            reason=reason,
            report=found.as_json() if found else {},
            sentence=found.sentence if found and state == "complete" else "",
        )

    async def listen(self, stop: asyncio.Event) -> None:
        """Tell that the run lives, and hear whether somebody wants the card back."""
        while not stop.is_set():
            if await sync_to_async(capacity.heard)(run=self._run):
                stop.set()
            await asyncio.sleep(STOP_POLL_S)


class Command(BaseCommand):
    """Hold an engine, measure it, keep everything."""

    help = "Measure an engine's prefill and decode rates by concurrency while nothing else runs."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the engine and what to measure."""
        parser.add_argument("engine", help="name, id or address of a registered engine")
        parser.add_argument("--lengths", type=_numbers, help="prompt tokens: 128,2048,10000")
        parser.add_argument("--concurrency", type=_numbers, help="1,2,4 … instead of the default")
        parser.add_argument("--repeats", type=int, help="how often each point is measured (5)")
        parser.add_argument("--answer-tokens", type=int, help="tokens of each answer (128)")
        parser.add_argument("--ttft-target", type=float, help="seconds, for goodput (2)")
        parser.add_argument(
            "--tpot-target", type=float, help="seconds per token, for goodput (0.1)"
        )
        parser.add_argument("--no-hold", action="store_true", help="no gateway serves this engine")
        parser.add_argument("--publish", action="store_true", help="publish it when it is complete")
        parser.add_argument(
            "--in", type=float, default=0.0, dest="in_min", metavar="MINUTES",
            help="announce it on the status page and begin so much later",
        )  # fmt: skip
        parser.add_argument("--run", help="a run that was planned before (used by the button)")
        parser.add_argument("--json", action="store_true", help="print the run for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        """Measure and print what was found."""
        replica = _replica(options["engine"])
        run = _run(replica, options["run"], options["in_min"])
        if options["run"]:
            _end_with_parent()
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=options["json"] or not Console(stderr=True).is_terminal,
        )
        with progress:
            # Not asyncio.run: the books are written in this thread, on its own connection.
            found = async_to_sync(self._measure)(replica, run, options, progress)
        run.refresh_from_db()
        if options["publish"] and run.state == CapacityRun.State.COMPLETE:
            capacity.publish(run=run)
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(run)))
        else:
            _print(Console(file=getattr(self.stdout, "_out", None)), run, found)
        if run.state in (CapacityRun.State.VOID, CapacityRun.State.FAILED):
            raise CommandError(f"The run is {run.state}: {run.reason}")

    async def _measure(
        self, replica: Replica, run: CapacityRun, options: dict[str, Any], progress: Progress
    ) -> Report | None:
        stop = asyncio.Event()
        await sync_to_async(_stop_on_signals)(asyncio.get_running_loop(), stop)
        hold: GatewayHold | NoHold = NoHold()
        if not options["no_hold"]:
            hold = GatewayHold(
                settings.GATEWAY_URL,
                _bearer,
                replica_id=replica.public_id,
                run=run.public_id,
                stop=stop,
            )
        books = Books(run, progress)
        subject = await sync_to_async(_subject)(replica)
        listening = asyncio.create_task(books.listen(stop))
        try:
            wishes = _planned(run) or _wishes(options)
            await _until_begin(run, stop)
            await Session(subject, wishes, hold, books, stop).run()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        return books.report


async def _until_begin(run: CapacityRun, stop: asyncio.Event) -> None:
    """Wait for the announced moment, or for a stop."""
    begins_at = announced.begins_at(run)
    if begins_at is None:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, (begins_at - timezone.now()).total_seconds())):
            await stop.wait()


def _stop_on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Give the card back on Ctrl-C instead of dying with the hold in hand."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _replica(name: str) -> Replica:
    address = name.rstrip("/")
    found = Replica.objects.select_related("pool", "card").filter(
        Q(name=name) | Q(public_id=name) | Q(url=address)
    )
    replica = found.first()
    if replica is None:
        known = ", ".join(Replica.objects.values_list("name", flat=True)) or "none"
        raise CommandError(f"No engine is called {name}. Registered: {known}.")
    return replica


def _run(replica: Replica, public_id: str | None, in_min: float) -> CapacityRun:
    if public_id:
        planned = CapacityRun.objects.filter(public_id=public_id, replica=replica).first()
        if planned is None or planned.state != CapacityRun.State.PLANNED:
            raise CommandError(f"There is no planned run {public_id} of {replica.name}.")
        return planned
    try:
        return capacity.request(replica=replica, in_s=60 * in_min)
    except ValidationError as error:
        raise CommandError(error.messages[0]) from error


def _subject(replica: Replica) -> Subject:
    card = replica.card
    beside = card.replicas.exclude(pk=replica.pk).exclude(state="disabled") if card else ()
    return Subject(
        replica_id=replica.public_id,
        url=replica.url,
        kind=replica.kind,
        model=replica.model or replica.pool.name,
        slots=replica.slots,
        card=f"{card.name} {card.profile}".strip() if card else "",
        sharing_mode=card.sharing_mode if card else "",
        beside={other.public_id: other.name for other in beside},
        api_key=engines.api_key_of(replica),
    )


def _planned(run: CapacityRun) -> Wishes | None:
    """Return what was wished when the run was planned by the button."""
    wishes = run.plan.get("wishes")
    return Wishes(**wishes) if wishes else None


def _end_with_parent() -> None:
    """Have the kernel tell us to stop when the worker that started us is gone (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wishes(options: Mapping[str, Any]) -> Wishes:
    return Wishes(
        lengths=options["lengths"],
        concurrencies=options["concurrency"],
        repeats=options["repeats"],
        answer_tokens=options["answer_tokens"],
        ttft_target_s=options["ttft_target"],
        tpot_target_s=options["tpot_target"],
    )


def _bearer() -> str:
    return sign(settings.SECRET_KEY, Credential("live", "", time.time() + 60))


def _as_json(run: CapacityRun) -> dict[str, Any]:
    return {
        "run": run.public_id,
        "engine": run.replica_name,
        "state": run.state,
        "reason": run.reason,
        "sentence": run.sentence,
        "published": run.is_published,
        "fingerprint": run.fingerprint,
        "fingerprint_digest": run.fingerprint_digest,
        "plan": run.plan,
        "report": run.report,
    }


def _print(console: Console, run: CapacityRun, found: Report | None) -> None:
    """Print the figures as a table, then the sentence."""
    if found is not None:
        table = Table(title=f"{run.replica_name}, {run.asked_at:%Y-%m-%d %H:%M} UTC", box=None)
        for name in ("prompt", "users", "prefill/s", "decode/s", "each/s", "TTFT p50", "p95", ""):
            table.add_column(name, justify="right")
        for point in found.points:
            table.add_row(*_row(point))
        console.print(table)
    console.print(run.sentence or f"{run.get_state_display()}. {run.reason}".strip())


def _row(point: PointReport) -> tuple[str, ...]:
    def text(value: float | None, digits: int = 0) -> str:
        return "unknown" if value is None else f"{value:,.{digits}f}"

    figures = (point.prefill_per_s, point.decode_per_s, point.decode_per_user_per_s)
    prefill, decode, each = (figure.value if figure else None for figure in figures)
    return (
        str(point.prompt_tokens),
        str(point.concurrency),
        text(prefill),
        text(decode),
        text(each, 1),
        text(point.ttft_p50_s, 2),
        text(point.ttft_p95_s, 2),
        "unsteady" if point.unsteady else "",
    )
