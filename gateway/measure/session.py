"""One measurement from the first look at the engine to its report, whoever keeps the records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from gateway.engines import fetch
from gateway.engines.base import EngineFacts, Health
from gateway.engines.check import check
from gateway.engines.detect import adapter
from gateway.measure import plan as plans
from gateway.measure.drive import Drive, Stopped, Target, Void
from gateway.measure.fingerprint import CoResident, diff, digest, fingerprint
from gateway.measure.hold import GatewayHold, NoHold
from gateway.measure.report import Report, Sample, report

# Rates to announce a run's length by, before the first step has told better.
GUESSED_PREFILL_PER_S = 1000.0
GUESSED_DECODE_PER_S = 100.0


@dataclass(frozen=True, slots=True)
class Subject:
    """The replica to be measured, as the books have it."""

    replica_id: str
    url: str
    kind: str
    model: str
    slots: int
    card: str = ""
    sharing_mode: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)  # replica id -> name, same card
    api_key: str = field(default="", repr=False)  # the engine's own


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller wants measured; None = the default of `plan.make`."""

    lengths: Sequence[int] | None = None
    concurrencies: Sequence[int] | None = None
    repeats: int | None = None
    answer_tokens: int | None = None
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None

    def given(self) -> dict[str, Any]:
        """Return only what was wished."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Record(Protocol):
    """Who keeps the records of a run; each call may raise `Stopped`."""

    async def began(
        self,
        plan: Mapping[str, Any],
        marks: Mapping[str, str],
        name: str,
        steps: int,
        left_s: float,
    ) -> None: ...

    async def sampled(self, sample: Sample, done: int, total: int, left_s: float) -> None: ...

    async def ended(self, state: str, reason: str, found: Report | None) -> None: ...


class Session:
    """Measures one subject."""

    def __init__(
        self,
        subject: Subject,
        wishes: Wishes,
        hold: GatewayHold | NoHold,
        record: Record,
        stop: asyncio.Event,
    ) -> None:
        self._subject = subject
        self._wishes = wishes
        self._hold = hold
        self._record = record
        self._stop = stop
        self._samples: list[Sample] = []
        self._plan: plans.Plan | None = None

    async def run(self) -> str:
        """Measure; returns the end state: complete, partial, void or failed."""
        state, reason = "complete", ""
        try:
            await self._measure()
        except Void as void:
            state, reason = "void", str(void)
        except Stopped:
            state, reason = "partial", "It was stopped before its end."
        except Exception as error:
            await self._end("failed", f"{type(error).__name__}: {error}")
            raise
        await self._end(state, reason)
        return state

    async def _end(self, state: str, reason: str) -> None:
        found = None
        if self._plan is not None and any(s.kind == "cold" for s in self._samples):
            found = report(self._plan, self._samples)
        await self._record.ended(state, reason, found)

    async def _measure(self) -> None:
        facts = await self._facts()
        slots = min(self._subject.slots, facts.slots or self._subject.slots)
        seed = time.time_ns() % 2**31
        self._plan = plan = plans.make(
            slots=slots, context=facts.context, seed=seed, **self._wishes.given()
        )
        length_s = plans.duration_s(plan, GUESSED_PREFILL_PER_S, GUESSED_DECODE_PER_S)
        self._hold.expect(length_s)
        async with self._hold:
            marks = await self._marks(facts, slots)
            total = len(plans.steps(plan))
            await self._record.began(asdict(plan), marks, digest(marks), total, length_s)
            await self._hold.drained()
            target = Target(
                self._subject.url,
                self._subject.model or facts.model or "",
                adapter(facts.kind),
                self._subject.api_key,
            )
            drive = Drive(target, plan, stop=self._stop, check_hold=self._hold.check)
            await drive.run(self._sampled)
            changed = diff(marks, await self._marks(await self._facts(), slots))
            if changed:
                names = ", ".join(change.name for change in changed)
                raise Void(f"The engine's settings changed during the run: {names}.")

    async def _facts(self) -> EngineFacts:
        async with fetch.client() as http:
            engine = adapter(self._subject.kind)
            pages = await fetch.pages(
                http,
                self._subject.url,
                {*engine.facts_paths, *engine.health_paths, *engine.reading_paths},
                timeout_s=10.0,
                api_key=self._subject.api_key,
            )
        found = check(self._subject.url, engine, pages)
        if found.health is not Health.OK:
            raise Void(f"The engine is not up: {found.lines()[0]}")
        return found.facts

    async def _marks(self, facts: EngineFacts, slots: int) -> dict[str, str]:
        seen = await self._hold.engines() if self._subject.beside else {}
        beside = [
            CoResident(name, _load(seen.get(replica_id)))
            for replica_id, name in self._subject.beside.items()
        ]
        return fingerprint(
            facts,
            slots=slots,
            card=self._subject.card,
            sharing_mode=self._subject.sharing_mode,
            co_residents=beside,
        )

    async def _sampled(self, sample: Sample, done: int, total: int) -> None:
        self._samples.append(sample)
        left_s = self._left_s(done)
        self._hold.expect(left_s)
        await self._record.sampled(sample, done, total, left_s)

    def _left_s(self, done: int) -> float:
        """Return how long the rest will take if it goes on as it went."""
        assert self._plan is not None  # noqa: S101
        order = plans.steps(self._plan)
        costs = [step.point.concurrency * (step.point.prompt_tokens + 300) for step in order]
        spent_s = sum(max((a.ended_s for a in s.answers), default=0.0) for s in self._samples)
        spent = sum(costs[:done])
        # Between steps the engine's numbers are read, which takes a moment as well.
        between_s = 0.5 * (len(order) - done)
        return spent_s / spent * sum(costs[done:]) + between_s


def _load(seen: Mapping[str, Any] | None) -> str:
    """Say what a neighbour on the card does: idle, active or unknown."""
    if seen is None or seen.get("state") not in ("up", "busy", "draining", "down", "asleep"):
        return "unknown"
    if seen["state"] in ("down", "asleep"):
        return str(seen["state"])
    held = (seen.get("held_interactive") or 0) + (seen.get("held_batch") or 0)
    running = seen.get("engine_running")
    if held or running:
        return "active"
    return "unknown" if running is None else "idle"
