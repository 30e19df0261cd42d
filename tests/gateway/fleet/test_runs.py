"""Runs of the measuring against real and simulated engines, and the traps that void them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from statistics import median
from typing import Any

import httpx
import pytest

from gateway.engines.detect import adapter
from gateway.measure.drive import Drive, Stopped, Target, Void
from gateway.measure.plan import Plan, Point, Prompts, make
from gateway.measure.report import Report, Sample, report
from tests.gateway.fleet.conftest import LlamaServer
from tests.rig.witness import Record, Witness


def target(url: str, kind: str, model: str = "tiny") -> Target:
    """Return an engine to measure."""
    return Target(url, model, adapter(kind))


def quick(slots: int, **changes: Any) -> Plan:
    """Return a short plan."""
    given: dict[str, Any] = {"lengths": (64, 256), "repeats": 2, "answer_tokens": 24}
    return make(slots=slots, context=2048, seed=3, **{**given, **changes})


async def run(drive: Drive) -> list[Sample]:
    """Run it and return its samples."""
    samples: list[Sample] = []

    async def keep(sample: Sample, done: int, total: int) -> None:
        samples.append(sample)

    await drive.run(keep)
    return samples


def measured(plan: Plan, samples: list[Sample]) -> Report:
    """Return the report."""
    return report(plan, samples)


async def measured_with_words(llama: LlamaServer) -> Report:
    """Measure with other prompts when the random weights answered in special tokens alone."""
    for seed in range(3, 7):
        plan = dataclasses.replace(quick(4), seed=seed)
        try:
            return measured(plan, await run(Drive(target(llama.url, "llamacpp"), plan)))
        except Void as void:
            if "without any content" not in str(void):
                raise
    raise AssertionError("no prompts made the tiny model write words")


async def test_a_real_llamacpp_is_measured_end_to_end(llama: LlamaServer) -> None:
    """
    A real engine gives rates at every concurrency, prompts as long as planned, none of it cached.
    """
    found = await measured_with_words(llama)

    assert [(p.planned_tokens, p.concurrency) for p in found.points] == [
        (n, c) for n in (64, 256) for c in (1, 2, 4, 8)
    ]
    for point in found.points:
        assert point.prompt_tokens == pytest.approx(point.planned_tokens, rel=0.15)
        assert point.prefill_per_s is not None
        assert point.decode_per_s is not None
        assert point.decode_per_s.value > 0
    assert found.sentence.startswith("Serves about ")
    assert (found.warm_prefix["cached_tokens"] or 0) > 200
    assert found.first_request["ttft_s"]


async def test_plain_requests_between_the_steps_agree_with_the_run(llama: LlamaServer) -> None:
    """
    Independent plain requests of the same shape, interleaved with the run's, tell the same speed:
    within 15 per cent, or the run's own spread if that is larger.
    """
    plan = quick(1, lengths=(256,), concurrencies=(1,), repeats=6, answer_tokens=96)
    drive = Drive(target(llama.url, "llamacpp"), plan)
    samples: list[Sample] = []
    plain: list[float] = []
    texts = Prompts(99)

    async def ask(sample: Sample, done: int, total: int) -> None:
        samples.append(sample)
        found = await asyncio.to_thread(llama.complete, texts.make(256), 96)
        plain.append(found["timings"]["predicted_per_second"])

    await drive.run(ask)
    (point,) = measured(plan, samples).points
    assert point.decode_per_s is not None
    allowed = max(0.15, point.decode_per_s.spread)
    assert point.decode_per_s.value == pytest.approx(median(plain), rel=allowed)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_quick_plan_agrees_with_plain_requests_at_every_point(llama: LlamaServer) -> None:
    """
    At 128 and 1,024 tokens and 1, 2 and 4 at once, plain requests sent between the run's steps and
    timed on their own tell the same rates: within 15 per cent, or the run's own spread.
    """
    plan = quick(4, lengths=(128, 1024), concurrencies=(1, 2, 4), repeats=3, answer_tokens=64)
    samples: list[Sample] = []
    plain: dict[Point, list[tuple[float, float]]] = {}
    texts = Prompts(99)

    async def ask(sample: Sample, done: int, total: int) -> None:
        samples.append(sample)
        if sample.kind == "cold":
            found = await plain_wave(llama, texts, sample.point)
            plain.setdefault(sample.point, []).append(found)

    await Drive(target(llama.url, "llamacpp"), plan).run(ask)
    for point in measured(plan, samples).points:
        ours = plain[Point(point.planned_tokens, point.concurrency)]
        for figure, rates in zip(
            (point.prefill_per_s, point.decode_per_s), zip(*ours, strict=True), strict=True
        ):
            assert figure is not None
            allowed = max(0.15, figure.spread)
            print(point.planned_tokens, point.concurrency, figure, median(rates), allowed)
            assert figure.value == pytest.approx(median(rates), rel=allowed)


async def plain_wave(llama: LlamaServer, texts: Prompts, point: Point) -> tuple[float, float]:
    """Return prefill and decode rate of as many plain requests, timed with nothing of ours."""
    loop = asyncio.get_running_loop()

    bodies = [
        {
            "prompt": texts.make(point.prompt_tokens), "max_tokens": 64, "ignore_eos": True,
            "temperature": 0, "stream": True, "cache_prompt": False,
        }
        for _ in range(point.concurrency)
    ]  # fmt: skip

    async def one(
        http: httpx.AsyncClient, body: dict[str, Any], began_s: float
    ) -> tuple[int, float, float, int]:
        times: list[float] = []
        timings: dict[str, Any] = {}
        async with http.stream("POST", f"{llama.url}/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    timings = event.get("timings", timings)
                    if any(choice["text"] for choice in event["choices"]):
                        times.append(loop.time() - began_s)
        return timings["prompt_n"], times[0], times[-1], timings["predicted_n"]

    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        # A tiny model reads a short prompt in the time that opening a connection takes.
        await asyncio.gather(*(http.get(f"{llama.url}/health") for _ in bodies))
        began_s = loop.time()
        found = await asyncio.gather(*(one(http, body, began_s) for body in bodies))
    prefill = sum(read for read, *_ in found) / max(first_s for _, first_s, *_ in found)
    return prefill, sum((n - 1) / (last_s - first_s) for _, first_s, last_s, n in found)


async def test_reused_prompts_make_a_run_void(llama: LlamaServer) -> None:
    """
    A prompt the engine has seen is answered from its cache, and the run says so.
    """

    class Same(Prompts):
        def make(self, tokens: int) -> str:
            return "the same old question " * (tokens // 4)

    drive = Drive(target(llama.url, "llamacpp"), quick(1), prompts=Same(1), extra={})

    with pytest.raises(Void, match="prefix cache"):
        await run(drive)


async def test_foreign_load_makes_a_run_void(llama: LlamaServer) -> None:
    """
    Somebody else's requests during the steps void the run, by the engine's own counters.
    """
    drive = Drive(target(llama.url, "llamacpp"), quick(2, answer_tokens=400))
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            llama.complete("a stranger's question", 600)

    stranger = threading.Thread(target=disturb)

    async def come(sample: Sample, done: int, total: int) -> None:
        if not stranger.is_alive():
            stranger.start()

    try:
        with pytest.raises(Void, match="Foreign load"):
            await drive.run(come)
    finally:
        over.set()
        await asyncio.to_thread(stranger.join)


async def test_an_engine_that_tells_nothing_cannot_be_measured(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Without the engine's own numbers nothing proves that the card was idle: void, not assumed.
    """
    monkeypatch.setattr("gateway.measure.drive.SETTLE_S", 0.5)
    witness.tell(metrics="missing", slots=4)

    with pytest.raises(Void, match="does not tell what runs"):
        await run(Drive(target(witness.url, "vllm"), quick(1)))


async def test_an_engine_that_does_not_count_cached_tokens_proves_by_its_counters(
    witness: Witness,
) -> None:
    """
    Where usage says nothing of the cache, the engine's hit counter must not have moved.
    """
    plan = quick(1, lengths=(64,), concurrencies=(1,), repeats=1)
    assert await run(Drive(target(witness.url, "vllm"), plan))

    witness.tell(cached_tokens=40)
    with pytest.raises(Void, match="prefix cache"):
        await run(Drive(target(witness.url, "vllm"), plan))


async def test_a_stop_gives_the_card_back_and_keeps_what_was_measured(witness: Witness) -> None:
    """
    A stop ends the wave that runs within a second; the samples before it are there.
    """
    witness.tell(decode_tps=200, tokens=100_000)
    stop = asyncio.Event()
    samples: list[Sample] = []

    async def keep(sample: Sample, done: int, total: int) -> None:
        samples.append(sample)
        if done == 2:
            witness.tell(decode_tps=1)
            asyncio.get_running_loop().call_later(0.3, stop.set)

    drive = Drive(target(witness.url, "vllm"), quick(1, answer_tokens=20), stop=stop)
    async with asyncio.timeout(5):
        with pytest.raises(Stopped):
            await drive.run(keep)
    assert len(samples) == 2


async def test_known_rates_come_out_within_three_per_cent(witness: Witness) -> None:
    """
    Prefill and decode agree with the simulated engine's own books at every concurrency, and the
    knee is at its slots. A busy machine may delay one run; no machine delays three the same way.
    """
    witness.tell(slots=4, tokens=1000, prefill_tps=600, decode_tps=40)
    for attempts_left in (2, 1, 0):
        known = len(witness.records())
        plan = quick(4, lengths=(300,), repeats=1, answer_tokens=20)
        found = measured(plan, await run(Drive(target(witness.url, "vllm"), plan)))
        books = witness.records()[known + 1 :]  # without the thrown-away first request
        wrong = disagreements(found, books)
        if not wrong and found.knee == 4:
            break
        assert attempts_left, (wrong, found.knee)
    assert found.points[-1].ttft_p95_s > 1.5 * found.points[0].ttft_p95_s


def disagreements(found: Report, books: list[Record]) -> list[str]:
    """Return where a report is more than three per cent from the engine's own books."""
    wrong: list[str] = []
    for point in found.points[:3]:
        wave, books = books[: point.concurrency], books[point.concurrency :]
        prefill, decode = true_rates(wave, point.prompt_tokens)
        assert point.decode_per_s is not None
        assert point.prefill_per_s is not None
        if point.decode_per_s.value != pytest.approx(decode, rel=0.03):
            wrong.append(f"{point.concurrency}: decode {point.decode_per_s.value}, not {decode}")
        # As times: on a loaded machine the client may hear of the first token a moment late.
        tokens = point.concurrency * point.prompt_tokens
        took_s, true_s = tokens / point.prefill_per_s.value, tokens / prefill
        if took_s != pytest.approx(true_s, abs=max(0.03 * true_s, 0.05)):
            wrong.append(f"{point.concurrency}: read in {took_s} s, not {true_s} s")
    return wrong


def true_rates(wave: list[Record], prompt_tokens: int) -> tuple[float, float]:
    """Return prefill and decode rate of requests that ran together, from the engine's books."""
    begin_s = min(record.arrived_s for record in wave)
    reading_s = max(record.first_s or 0.0 for record in wave) - begin_s
    decode = sum((r.tokens - 1) / ((r.ended_s or 0.0) - (r.first_s or 0.0)) for r in wave)
    return len(wave) * prompt_tokens / reading_s, decode
