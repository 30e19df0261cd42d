"""Finds out which adapter fits: by pages that only one kind of engine has."""

from __future__ import annotations

from gateway.engines.base import NO_PAGE, Engine, Pages, first_model
from gateway.engines.llamacpp import LlamaCpp
from gateway.engines.openai import OpenAiCompatible
from gateway.engines.sglang import SGLang
from gateway.engines.vllm import Vllm

ADAPTERS: dict[str, Engine] = {
    engine.kind: engine for engine in (LlamaCpp(), Vllm(), SGLang(), OpenAiCompatible())
}
# Every page that may tell something, asked once when an engine is registered or checked.
DETECT_PATHS = tuple(
    sorted(
        {path for e in ADAPTERS.values() for path in (*e.health_paths, *e.facts_paths)}
        | {path for e in ADAPTERS.values() for path in e.reading_paths}
    )
)


def adapter(kind: str) -> Engine:
    """Return the adapter of a kind; a kind we do not know is served as plain OpenAI."""
    return ADAPTERS.get(kind, ADAPTERS["openai"])


def recognise(pages: Pages) -> Engine:
    """Return the adapter that fits the pages an engine answered."""
    metrics = pages.get("/metrics", NO_PAGE)
    body = metrics.body if metrics.ok else b""
    owner = first_model(pages).get("owned_by")
    props = pages.get("/props", NO_PAGE).json_object()
    if b"llamacpp:" in body or owner == "llamacpp" or "total_slots" in props:
        return ADAPTERS["llamacpp"]
    if b"sglang:" in body or owner == "sglang" or pages.get("/get_server_info", NO_PAGE).ok:
        return ADAPTERS["sglang"]
    if b"vllm:" in body or owner == "vllm":
        return ADAPTERS["vllm"]
    return ADAPTERS["openai"]
