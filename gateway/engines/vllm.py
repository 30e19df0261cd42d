"""vLLM: slots are an admin's number, metrics changed names, and sleep looks like idleness."""

from __future__ import annotations

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

# Newest name first; the first that is on the page counts. `_created` twins have other names.
RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PROMPT = ("vllm:prompt_tokens_total", "vllm:prompt_tokens")
CACHED = ("vllm:prompt_tokens_cached_total",)
COMPLETION = ("vllm:generation_tokens_total", "vllm:generation_tokens")
QUERIES = (
    "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_queries",
)
HITS = (
    "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_hits",
)
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
REJECTIONS = ("vllm:admission_rejections_total",)
SLEEP = "vllm:engine_sleep_state"
CACHE_CONFIG = "vllm:cache_config_info"
STARTED = "process_start_time_seconds"
NAMES = (
    *RUNNING,
    *WAITING,
    *KV_USAGE,
    *PROMPT,
    *CACHED,
    *COMPLETION,
    *QUERIES,
    *HITS,
    *PREEMPTIONS,
    *REJECTIONS,
    SLEEP,
    CACHE_CONFIG,
    STARTED,
)


class Vllm:
    """Adapter for vLLM's OpenAI server."""

    kind: str = "vllm"
    health_paths: tuple[str, ...] = ("/health",)
    reading_paths: tuple[str, ...] = ("/metrics", "/is_sleeping")
    # Not /server_info: it is there in development mode only and takes seconds to answer.
    facts_paths: tuple[str, ...] = ("/version", "/v1/models", "/metrics", "/is_sleeping")

    def health(self, page: Page) -> Health:
        """Judge /health; its body is empty, and 503 means that the engine core is dead."""
        return plain_health(page)

    def reading(self, pages: Pages) -> EngineReading:
        """Read /metrics; /load is never asked, it lies without its flag."""
        numbers = Exposition(pages.get("/metrics", NO_PAGE), NAMES)
        prompt = whole(numbers.total(*PROMPT))
        completion = whole(numbers.total(*COMPLETION))
        started = numbers.largest(STARTED)
        return EngineReading(
            running=whole(numbers.total(*RUNNING)),
            waiting=whole(numbers.total(*WAITING)),
            kv_usage=fraction(numbers.largest(*KV_USAGE)),
            prompt_tokens_total=prompt,
            cached_tokens_total=whole(numbers.total(*CACHED)),
            completion_tokens_total=completion,
            completion_tokens_live=None if completion is None else 0,
            prefix_queries_total=whole(numbers.total(*QUERIES)),
            prefix_hits_total=whole(numbers.total(*HITS)),
            preemptions_total=whole(numbers.total(*PREEMPTIONS)),
            rejections_total=whole(numbers.total(*REJECTIONS)),
            progress=_progress(prompt, completion),
            incarnation=None if started is None else f"{started:.2f}",
            sleeping=_sleeping(numbers, pages),
        )

    def facts(self, pages: Pages) -> EngineFacts:
        """Read the version, the models and the cache's configuration."""
        names = model_names(pages)
        first = first_model(pages)
        metrics = pages.get("/metrics", NO_PAGE)
        config = Exposition(metrics, [CACHE_CONFIG]).labels(CACHE_CONFIG)
        version = text(pages.get("/version", NO_PAGE).json_object().get("version"))
        context = whole(first.get("max_model_len"))
        settings = {f"cache.{name}": value for name, value in config.items() if name != "engine"}
        if version:
            settings["version"] = version
        if context is not None:
            settings["max_model_len"] = str(context)
        root = text(first.get("root"))
        if root:
            settings["root"] = root
        return EngineFacts(
            kind=self.kind,
            version=version,
            model=names[0] if names else None,
            models=names,
            slots=None,  # max_num_seqs is on no page
            context=context,
            quantisation=None,
            capabilities=_capabilities(pages, metrics),
            settings=settings,
        )

    def advice(self, facts: EngineFacts, pages: Pages) -> tuple[str, ...]:
        """Say which flags let the two schedulers work together."""
        lines = [
            "Slots cannot be read from vLLM: enter a number below its --max-num-seqs (32 is a "
            "good start), and start vLLM with --max-num-queued-reqs a little above it.",
            "To hand on the order, start it with --scheduling-policy priority and tick "
            '"takes priority" here; without the flag leave it unticked.',
            "To have cached tokens counted, start it with --enable-prompt-tokens-details.",
            "For interactive use --max-num-batched-tokens 2048 and --long-prefill-token-threshold "
            "512 keep one long prompt from stalling everybody.",
        ]
        if "metrics" not in facts.capabilities:
            lines.insert(0, "Its /metrics page was not found: queue and cache stay unknown.")
        if "sleep" in facts.capabilities:
            lines.append("Development mode is on: let nobody but the gateway reach this port.")
        return tuple(lines)


def _progress(prompt: int | None, completion: int | None) -> int | None:
    if prompt is None and completion is None:
        return None
    return (prompt or 0) + (completion or 0)


def _sleeping(numbers: Exposition, pages: Pages) -> bool | None:
    """Tell whether it sleeps: healthy and empty, yet no request would ever be answered."""
    said = pages.get("/is_sleeping", NO_PAGE).json_object().get("is_sleeping")
    if isinstance(said, bool):
        return said
    states = numbers.samples(SLEEP)
    awake = [s.value for s in states if s.labels.get("sleep_state") == "awake"]
    if awake:
        return min(awake) < 1
    return None


def _capabilities(pages: Pages, metrics: Page) -> tuple[str, ...]:
    found = []
    if metrics.ok and b"vllm:" in metrics.body:
        found.append("metrics")
    if Exposition(metrics, HITS).total(*HITS) is not None:
        found.append("prefix_cache")
    if pages.get("/is_sleeping", NO_PAGE).ok:
        found.append("sleep")
    return tuple(found)
