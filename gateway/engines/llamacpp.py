"""llama.cpp's server: slots are literal, counters beat gauges, /metrics waits behind a prefill.

Its `*_tokens_seconds` gauges are averages since the last scrape by anybody, so they are not read.
"""

from __future__ import annotations

from typing import Any

from gateway.engines.base import (
    NO_PAGE,
    EngineFacts,
    EngineReading,
    Health,
    Page,
    Pages,
    added,
    first_model,
    model_names,
    plain_health,
    text,
    whole,
)
from gateway.engines.exposition import Exposition

RUNNING = "llamacpp:requests_processing"
WAITING = "llamacpp:requests_deferred"
PROMPT = "llamacpp:prompt_tokens_total"  # excludes cached ones
CACHED = "llamacpp:prompt_tokens_cached_total"
COMPLETION = "llamacpp:tokens_predicted_total"  # moves only when a request ends
DECODES = "llamacpp:n_decode_total"
NAMES = (RUNNING, WAITING, PROMPT, CACHED, COMPLETION, DECODES)
INCARNATION_HEADER = "process-start-time-unix"


class LlamaCpp:
    """Adapter for llama.cpp's HTTP server."""

    kind: str = "llamacpp"
    health_paths: tuple[str, ...] = ("/health",)
    reading_paths: tuple[str, ...] = ("/metrics", "/slots")
    facts_paths: tuple[str, ...] = ("/props", "/v1/models", "/metrics", "/slots")

    def health(self, page: Page) -> Health:
        """Judge /health: 503 while the model is being loaded."""
        return plain_health(page)

    def reading(self, pages: Pages) -> EngineReading:
        """Read /metrics, completed by /slots where metrics are off."""
        metrics = pages.get("/metrics", NO_PAGE)
        numbers = Exposition(metrics, NAMES)
        slots = _slots(pages)
        uncached = whole(numbers.total(PROMPT))
        cached = whole(numbers.total(CACHED))
        prompt = added(uncached, cached)
        live = _decoded(slots)
        running = whole(numbers.total(RUNNING))
        return EngineReading(
            running=_busy(slots) if running is None else running,
            waiting=whole(numbers.total(WAITING)),
            prompt_tokens_total=prompt,
            cached_tokens_total=cached,
            completion_tokens_total=whole(numbers.total(COMPLETION)),
            completion_tokens_live=live,
            prefix_queries_total=prompt,
            prefix_hits_total=cached,
            progress=_progress(numbers, uncached, slots),
            incarnation=text(metrics.headers.get(INCARNATION_HEADER)),
            slots=None if slots is None else len(slots),
        )

    def facts(self, pages: Pages) -> EngineFacts:
        """Read /props and the model's own description."""
        props = pages.get("/props", NO_PAGE).json_object()
        defaults = props.get("default_generation_settings")
        defaults = defaults if isinstance(defaults, dict) else {}
        meta = first_model(pages).get("meta")
        meta = meta if isinstance(meta, dict) else {}
        names = model_names(pages)
        slots = _slots(pages)
        total = whole(props.get("total_slots"))
        return EngineFacts(
            kind=self.kind,
            version=text(props.get("build_info")),
            model=names[0] if names else text(props.get("model_alias")),
            models=names,
            slots=total if total is not None or slots is None else len(slots),
            context=whole(defaults.get("n_ctx")) or whole(meta.get("n_ctx")),
            quantisation=text(props.get("model_ftype")) or text(meta.get("ftype")),
            parameters=whole(meta.get("n_params")),
            capabilities=_capabilities(pages, props),
            settings=_settings(props, defaults, meta),
        )

    def advice(self, facts: EngineFacts, pages: Pages) -> tuple[str, ...]:
        """Say what to switch on so that the gateway sees everything."""
        lines = []
        if facts.slots is None:
            lines.append("Slots cannot be read: start it without --no-slots, or enter the number.")
        elif facts.slots == 1:
            lines.append("One slot: everybody waits for everybody. Raise -np (--parallel).")
        if "metrics" not in facts.capabilities:
            lines.append("Token counters are off: start it with --metrics.")
        if "router" in facts.capabilities:
            lines.append("Router mode: start it with --no-models-autoload; Fairway loads models.")
        lines.append(
            "Keep -b (--batch-size) between 512 and 2048: others stall while a batch is read."
        )
        lines.append(
            "It does not tell whether layers are on the GPU (-ngl): measure it to be sure."
        )
        return tuple(lines)


def _slots(pages: Pages) -> list[dict[str, Any]] | None:
    listed = pages.get("/slots", NO_PAGE).json()
    if not isinstance(listed, list) or not all(isinstance(slot, dict) for slot in listed):
        return None
    return listed or None


def _busy(slots: list[dict[str, Any]] | None) -> int | None:
    if slots is None or not all(isinstance(slot.get("is_processing"), bool) for slot in slots):
        return None
    return sum(1 for slot in slots if slot["is_processing"])


def _slot_decoded(slot: dict[str, Any]) -> int:
    following = slot.get("next_token")
    if isinstance(following, list) and following and isinstance(following[0], dict):
        return whole(following[0].get("n_decoded")) or 0
    return 0


def _decoded(slots: list[dict[str, Any]] | None) -> int | None:
    if slots is None:
        return None
    return sum(_slot_decoded(slot) for slot in slots if slot.get("is_processing") is True)


def _progress(
    numbers: Exposition, uncached: int | None, slots: list[dict[str, Any]] | None
) -> int | None:
    """Return a number that changes with every batch: decode calls, else what the slots did."""
    decodes = whole(numbers.total(DECODES))
    if decodes is not None:
        return decodes + (uncached or 0)
    if slots is None:
        return None
    read = sum(whole(slot.get("n_prompt_tokens_processed")) or 0 for slot in slots)
    return read + sum(map(_slot_decoded, slots))


def _capabilities(pages: Pages, props: dict[str, Any]) -> tuple[str, ...]:
    found = []
    if pages.get("/metrics", NO_PAGE).ok and b"llamacpp:" in pages["/metrics"].body:
        found.append("metrics")
    if _slots(pages) is not None:
        found.append("slots")
    if props:
        found.append("props")
    if props.get("role") == "router":
        found.append("router")
    found.append("cached_tokens")  # always in usage.prompt_tokens_details
    return tuple(found)


def _settings(
    props: dict[str, Any], defaults: dict[str, Any], meta: dict[str, Any]
) -> dict[str, str]:
    """Return everything it reveals that can change a measurement."""
    params = defaults.get("params")
    params = params if isinstance(params, dict) else {}
    named = {
        "total_slots": props.get("total_slots"),
        "n_ctx": defaults.get("n_ctx"),
        "model_ftype": props.get("model_ftype") or meta.get("ftype"),
        "model_size": meta.get("size"),
        "n_params": meta.get("n_params"),
        "build_info": props.get("build_info"),
        "speculative.types": params.get("speculative.types"),
        "backend_sampling": params.get("backend_sampling"),
        "samplers": params.get("samplers"),
    }
    return {name: str(value) for name, value in named.items() if value is not None}
