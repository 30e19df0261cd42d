"""Runs a plan against one engine and proves at every step that nothing else ran there.

Rule 1: a run that cannot prove a condition is void, and says which. Nothing is assumed.
Rule 2: the engine is asked directly, past the gateway; whoever calls holds it.
Rule 3: a stop is obeyed within seconds; what was measured until then is kept as partial.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.engines import fetch
from gateway.engines.base import Engine, EngineReading
from gateway.measure.plan import Plan, Prompts, Step, steps
from gateway.measure.report import Answer, Sample

POLL_S = 0.5
SETTLE_S = 10.0  # an engine's own numbers may lag behind the last byte
REQUEST_S = 1800.0
READING_S = 5.0


class Void(Exception):
    """The run proves nothing; the text says why in plain words."""


class Stopped(Exception):
    """Somebody wanted the card back."""


@dataclass(frozen=True, slots=True)
class Target:
    """The engine that is measured."""

    url: str
    model: str
    engine: Engine
    api_key: str = field(default="", repr=False)  # the engine's own


OnSample = Callable[[Sample, int, int], Awaitable[None]]  # the sample, steps done, steps in all
Check = Callable[[], None]  # raises Void when the hold was lost


class Drive:
    """One run. `extra` goes into every request's body."""

    def __init__(
        self,
        target: Target,
        plan: Plan,
        *,
        stop: asyncio.Event | None = None,
        check_hold: Check = lambda: None,
        prompts: Prompts | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self._target = target
        self._plan = plan
        self._stop = stop or asyncio.Event()
        self._check_hold = check_hold
        self._prompts = prompts or Prompts(plan.seed)
        # llama.cpp would reuse whatever two prompts share; a cold prompt must be read whole.
        cold = {"cache_prompt": False} if target.engine.kind == "llamacpp" else {}
        self._cold = cold if extra is None else extra
        self._pages = fetch.client()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(REQUEST_S, connect=5.0),
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            headers=fetch.bearer(target.api_key),
        )

    async def run(self, on_sample: OnSample) -> None:
        """Run every step; raises `Void` or `Stopped`, what was sampled until then counts."""
        try:
            order = steps(self._plan)
            await self.idle("before the run")
            for done, step in enumerate(order):
                self._may_go_on()
                sample = await self._step(step)
                await on_sample(sample, done + 1, len(order))
            await self.idle("after the run")
            self._check_hold()
        finally:
            await self._http.aclose()
            await self._pages.aclose()

    def _may_go_on(self) -> None:
        if self._stop.is_set():
            raise Stopped
        self._check_hold()

    # The engine's own numbers

    async def reading(self) -> EngineReading:
        """Ask the engine for its numbers; while it reads a long prompt it may not answer."""
        target = self._target
        paths = target.engine.reading_paths
        pages = await fetch.pages(self._pages, target.url, paths, READING_S, api_key=target.api_key)
        return target.engine.reading(pages)

    async def idle(self, when: str) -> EngineReading:
        """Return the engine's numbers once it says that nothing runs or waits in it."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SETTLE_S
        while True:
            seen = await self.reading()
            if seen.running == 0 and seen.waiting in (0, None):
                return seen
            if seen.running is None and loop.time() > until_s:
                raise Void(
                    f"The engine does not tell what runs in it ({when}), so nothing proves that "
                    "the card was idle. Switch its metrics on."
                )
            if loop.time() > until_s:
                raise Void(
                    f"Foreign load {when}: {seen.running} running and {seen.waiting or 0} waiting "
                    "in the engine that are not of this run."
                )
            await self._pause(POLL_S / 2)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not through a stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        raise Stopped

    # Steps

    async def _step(self, step: Step) -> Sample:
        before = await self.idle(f"before step {step.number}")
        count, tokens = step.point.concurrency, step.point.prompt_tokens
        if step.kind == "warm":
            text = self._prompts.make(tokens)
            primed = await self._wave([text], {})
            answers = await self._wave([text], {})
            sent = [*primed, *answers]
        else:
            texts = [self._prompts.make(tokens) for _ in range(count)]
            answers = sent = await self._wave(texts, self._cold)
        after = await self.idle(f"after step {step.number}")
        _prove_nothing_else_ran(step, sent, before, after)
        if step.kind != "warm":
            _prove_cold(step, answers, before, after)
        return Sample(step.number, step.kind, step.point, step.repeat, tuple(answers))

    async def _wave(self, texts: list[str], extra: dict[str, Any]) -> list[Answer]:
        """Send all prompts at once and wait for all answers, watching the engine meanwhile."""
        begin_s = asyncio.get_running_loop().time()
        requests = [asyncio.create_task(self._request(text, extra, begin_s)) for text in texts]
        helpers = [
            asyncio.create_task(self._watch(len(texts))),
            asyncio.create_task(self._stopped()),
        ]
        whole = asyncio.gather(*requests)
        awaited: list[asyncio.Future[Any]] = [whole, *helpers]
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for helper in helpers:
                if helper.done():
                    helper.result()
            return await whole
        finally:
            for task in (*requests, *helpers):
                task.cancel()
            await asyncio.gather(*requests, *helpers, whole, return_exceptions=True)

    async def _stopped(self) -> None:
        await self._stop.wait()
        raise Stopped

    async def _watch(self, ours: int) -> None:
        """Raise when more is in the engine than this run has sent."""
        while True:
            await asyncio.sleep(POLL_S)
            seen = await self.reading()
            inside = (seen.running or 0) + (seen.waiting or 0)
            if inside > ours:
                raise Void(f"Foreign load during a step: {inside} in the engine, {ours} are ours.")

    async def _request(self, text: str, extra: dict[str, Any], begin_s: float) -> Answer:
        body = {
            "model": self._target.model,
            "prompt": text,
            "max_tokens": self._plan.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **extra,
        }
        reader = _Reader(begin_s)
        try:
            async with self._http.stream(
                "POST", f"{self._target.url}/v1/completions", json=body
            ) as answer:
                if answer.status_code != 200:
                    said = (await answer.aread())[:300].decode("utf-8", "replace")
                    raise Void(f"The engine answered {answer.status_code}: {said}")
                await reader.read(answer.aiter_lines())
        except httpx.HTTPError as error:
            raise Void(f"The engine broke off: {type(error).__name__}.") from error
        except ValueError as error:
            raise Void("The engine sent an event that is not JSON.") from error
        found = reader.answer()
        self._prompts.learn(text, found.prompt_tokens)
        return found


class _Reader:
    """Reads one streamed answer: when content came, and what the engine counted."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self._content_s: list[float] = []
        self._usage: dict[str, Any] = {}

    async def read(self, lines: AsyncIterator[str]) -> None:
        """Read events until the stream ends."""
        clock = asyncio.get_running_loop().time
        async for line in lines:
            if not line.startswith("data:") or line.endswith("[DONE]"):
                continue
            now_s = clock() - self._begin_s
            event = json.loads(line[5:])
            if "error" in event:
                raise Void(f"The engine sent an error: {str(event['error'])[:300]}")
            if isinstance(event.get("usage"), dict):
                self._usage = event["usage"]
            if any(choice.get("text") for choice in event.get("choices") or ()):
                self._content_s.append(now_s)

    def answer(self) -> Answer:
        """Return the answer; without counts or content there is nothing to measure."""
        prompt = self._usage.get("prompt_tokens")
        completion = self._usage.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(completion, int):
            raise Void("The engine does not tell how many tokens it read and wrote.")
        if not self._content_s:
            raise Void("An answer came without any content.")
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Answer(
            prompt_tokens=prompt,
            cached_tokens=cached if isinstance(cached, int) else None,
            completion_tokens=completion,
            first_s=self._content_s[0],
            ended_s=self._content_s[-1],
            content_s=tuple(self._content_s),
        )


def _prove_nothing_else_ran(
    step: Step, sent: list[Answer], before: EngineReading, after: EngineReading
) -> None:
    """Hold the engine's counters against what was sent: the load arrived, and no other did."""
    if before.incarnation != after.incarnation:
        raise Void(f"The engine was restarted during step {step.number}.")
    pairs = (
        ("prompt", before.prompt_tokens_total, after.prompt_tokens_total,
         sum(answer.prompt_tokens for answer in sent)),
        ("answer", before.completion_tokens_total, after.completion_tokens_total,
         sum(answer.completion_tokens for answer in sent)),
    )  # fmt: skip
    for name, old, new, ours in pairs:
        if old is None or new is None:
            continue
        if new < old:
            raise Void(f"The engine was restarted during step {step.number}.")
        if new - old > ours + len(sent):
            raise Void(
                f"Foreign load in step {step.number}: the engine counted {new - old} {name} "
                f"tokens, this run sent {ours}."
            )
        if new - old < ours - len(sent):
            raise Void(
                f"Not confirmed in step {step.number}: the engine counted {new - old} {name} "
                f"tokens where this run saw {ours}. Is another engine behind this address?"
            )


def _prove_cold(
    step: Step, answers: list[Answer], before: EngineReading, after: EngineReading
) -> None:
    """Prove that no prompt was answered from the prefix cache."""
    told = [answer.cached_tokens for answer in answers]
    if any(told):
        cached = sum(count or 0 for count in told)
        raise Void(f"{cached} prompt tokens of step {step.number} came from the prefix cache.")
    if None not in told:
        return
    hits = (before.prefix_hits_total, after.prefix_hits_total)
    if hits[0] is None or hits[1] is None:
        raise Void(
            "The engine does not tell whether prompts came from its prefix cache. vLLM: start it "
            "with --enable-prompt-tokens-details."
        )
    if hits[1] > hits[0]:
        raise Void(f"{hits[1] - hits[0]} prompt tokens of step {step.number} came from the cache.")
