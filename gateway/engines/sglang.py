"""SGLang: larger priority goes first, one metrics series per priority, queue bound by flag."""

from __future__ import annotations

from typing import Any

from gateway.engines.base import (
    NO_PAGE,
    EngineFacts,
    EngineReading,
    Health,
    Page,
    Pages,
    first_model,
    fraction,
    model_names,
    plain_health,
    text,
    whole,
)
from gateway.engines.exposition import Exposition

RUNNING = ("sglang:num_running_reqs", "sglang:num_running_req")
WAITING = ("sglang:num_queue_reqs", "sglang:num_waiting_reqs")
KV_USAGE = ("sglang:token_usage",)
PROMPT = ("sglang:prompt_tokens_total",)
CACHED = ("sglang:cached_tokens_total",)
COMPLETION = ("sglang:generation_tokens_total",)
RETRACTED = ("sglang:num_retracted_requests_total",)
STARTED = "process_start_time_seconds"
NAMES = (*RUNNING, *WAITING, *KV_USAGE, *PROMPT, *CACHED, *COMPLETION, *RETRACTED, STARTED)
INFO_PATHS = ("/server_info", "/get_server_info")
# Settings that change a measurement; the page also holds paths and secrets of its host.
REVEALED = (
    "tp_size",
    "dp_size",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "max_running_requests",
    "max_total_num_tokens",
    "chunked_prefill_size",
    "schedule_policy",
    "speculative_algorithm",
    "mem_fraction_static",
    "disable_radix_cache",
    "disable_priority_preemption",
    "attention_backend",
)


class SGLang:
    """Adapter for SGLang's OpenAI server."""

    kind: str = "sglang"
    health_paths: tuple[str, ...] = ("/health",)
    reading_paths: tuple[str, ...] = ("/metrics",)
    facts_paths: tuple[str, ...] = (*INFO_PATHS, "/v1/models", "/metrics")

    def health(self, page: Page) -> Health:
        """Judge /health; 503 until the model is loaded."""
        if page.status == 503:
            return Health.LOADING
        return plain_health(page)

    def reading(self, pages: Pages) -> EngineReading:
        """Read /metrics; there with --enable-metrics only."""
        numbers = Exposition(pages.get("/metrics", NO_PAGE), NAMES)
        prompt = whole(numbers.total(*PROMPT))
        cached = whole(numbers.total(*CACHED))
        completion = whole(numbers.total(*COMPLETION))
        started = numbers.largest(STARTED)
        progress = None
        if prompt is not None or completion is not None:
            progress = (prompt or 0) + (completion or 0)
        return EngineReading(
            running=whole(numbers.total(*RUNNING)),
            waiting=whole(numbers.total(*WAITING)),
            kv_usage=fraction(numbers.largest(*KV_USAGE)),
            prompt_tokens_total=prompt,
            cached_tokens_total=cached,
            completion_tokens_total=completion,
            completion_tokens_live=None if completion is None else 0,
            prefix_queries_total=None if cached is None else prompt,
            prefix_hits_total=cached,
            preemptions_total=whole(numbers.total(*RETRACTED)),
            progress=progress,
            incarnation=None if started is None else f"{started:.2f}",
        )

    def facts(self, pages: Pages) -> EngineFacts:
        """Read the server's arguments as far as they matter."""
        info = _info(pages)
        names = model_names(pages)
        slots = whole(info.get("max_running_requests"))
        context = whole(first_model(pages).get("max_model_len"))
        return EngineFacts(
            kind=self.kind,
            version=text(info.get("version")),
            model=names[0] if names else text(info.get("served_model_name")),
            models=names,
            slots=slots,
            context=context or whole(info.get("context_length")),
            quantisation=text(info.get("quantization")),
            capabilities=_capabilities(pages, info),
            settings={k: str(info[k]) for k in REVEALED if info.get(k) is not None},
        )

    def advice(self, facts: EngineFacts, pages: Pages) -> tuple[str, ...]:
        """Say which flags let the two schedulers work together."""
        lines = []
        if "metrics" not in facts.capabilities:
            lines.append("Its metrics are off: start it with --enable-metrics.")
        if facts.slots is None:
            lines.append("Slots cannot be read: enter a number below --max-running-requests.")
        if "cached_tokens" not in facts.capabilities:
            lines.append("To have cached tokens counted, start it with --enable-cache-report.")
        if "priority" not in facts.capabilities:
            lines.append(
                "To hand on the order, start it with --enable-priority-scheduling and "
                '--disable-priority-preemption, and tick "takes priority" here.'
            )
        elif facts.settings.get("disable_priority_preemption") != "True":
            lines.append(
                "Unless it was started with --disable-priority-preemption it throws out running "
                "requests for waiting ones."
            )
        return tuple(lines)


def _info(pages: Pages) -> dict[str, Any]:
    for path in INFO_PATHS:
        found = pages.get(path, NO_PAGE).json_object()
        if found:
            return found
    return {}


def _capabilities(pages: Pages, info: dict[str, Any]) -> tuple[str, ...]:
    found = []
    metrics = pages.get("/metrics", NO_PAGE)
    if metrics.ok and b"sglang:" in metrics.body:
        found.append("metrics")
    if info.get("enable_priority_scheduling") is True:
        found.append("priority")
    if info.get("enable_cache_report") is True:
        found.append("cached_tokens")
    return tuple(found)
