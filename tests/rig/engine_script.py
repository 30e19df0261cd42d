"""What the witness engine is told to do, and the pages it shows; nothing here does I/O."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Script:
    """The engine's behaviour. `rules` override it for requests whose mark holds a text."""

    kind: str = "vllm"  # vllm or llamacpp: which pages exist and how they look
    model: str = "witness"
    slots: int = 4
    context: int = 4096
    tokens: int = 16  # most tokens of an answer
    prefill_tps: float = 0.0  # 0: at once
    decode_tps: float = 0.0  # per request; 0: at once
    first_delay_s: float = 0.0  # holds the slot before the first token
    headers_early: bool = False  # 200 and headers while still queued, as vLLM does
    usage: str = "asked"  # asked, none, last, every
    packs: int = 1  # tokens in one event, as engines under load do
    counts_along: bool = False  # obeys continuous_usage_stats, as vLLM does
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    # How the answer's bytes are cut into writes: "" as they come, "byte", or "seed:N".
    cut: str = ""
    cut_pause_s: float = 0.0
    answer_b64: str = ""  # send exactly this body instead
    answer_type: str = ""
    answer_encoding: str = ""
    fail_status: int = 0  # answer this status instead
    fail_share: float = 1.0
    fail_first: int = -1  # only so many times; -1: always
    fail_body: str = ""
    busy: bool = False  # 503 when all slots are taken, instead of deferring
    error_after: int = -1  # after so many tokens: an error event, then [DONE]
    close_after: int = -1  # … : the connection ends without a word
    reset_after: int = -1  # … : the connection is reset
    hang_after: int = -1  # … : nothing more, connection open
    die: bool = False  # the process ends when the request arrives
    finish: bool = True  # send a finish reason
    done: bool = True  # send [DONE]
    ping_s: float = 0.0  # comment lines while hanging
    idle_close_s: float = 0.0  # keep-alive limit; 0: none
    # This share of the requests on a kept connection meets its closing, as if both had crossed.
    closes_on_reuse: float = 0.0
    close_after_stream: bool = False  # as llama.cpp does, unannounced
    health: str = "ok"  # ok, loading, error, hang
    health_delay_s: float = 0.0
    api_key: str = ""  # what callers must show; like the real ones it shows some pages to anybody
    metrics: str = "own"  # own, old, html, huge, empty, nan, hang, missing
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)

    def for_mark(self, mark: str) -> Script:
        """Return the behaviour for one request."""
        for text, changes in self.rules.items():
            if text in mark:
                return dataclasses.replace(self, **changes)
        return self

    def to_json(self) -> str:
        """Serialise for the control socket and the command line."""
        return json.dumps(dataclasses.asdict(self))


@dataclass
class Counters:
    """The engine's own books, as its metrics page shows them."""

    running: int = 0
    waiting: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    rejected: int = 0
    finished: int = 0
    aborted: int = 0


def cuts(how: str, data: bytes) -> Iterator[bytes]:
    """Split one event's bytes the way the script says."""
    if how == "byte":
        yield from (data[at : at + 1] for at in range(len(data)))
    elif how.startswith("seed:"):
        # Text and data give the seed, so a rerun cuts in the same places.
        dice = random.Random(how.encode() + data)
        at = 0
        while at < len(data):
            size = dice.choice((1, 1, 2, 3, 5, 17, 400))
            yield data[at : at + size]
            at += size
    else:
        yield data


def prompt_text(body: dict[str, Any]) -> str:
    """Return all text of a chat, completion or embeddings request."""
    if isinstance(body.get("messages"), list):
        parts = [m.get("content") if isinstance(m, dict) else m for m in body["messages"]]
        return "\n".join(p if isinstance(p, str) else json.dumps(p) for p in parts)
    prompt = body.get("prompt", body.get("input", ""))
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


def prompt_tokens(body: dict[str, Any]) -> int:
    """Count the way this engine does: one token a word, three a message."""
    messages = body.get("messages")
    return len(prompt_text(body).split()) + 3 * (len(messages) if isinstance(messages, list) else 0)


def usage(script: Script, prompt: int, completion: int) -> dict[str, Any]:
    """Return the usage object of an answer."""
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if script.cached_tokens is not None:
        found["prompt_tokens_details"] = {"cached_tokens": min(script.cached_tokens, prompt)}
    if script.reasoning_tokens is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": script.reasoning_tokens}
    return found


def is_open(script: Script, path: str) -> bool:
    """Answer whether a page needs no key: vLLM guards /v1 alone, llama.cpp all but two."""
    if script.kind == "llamacpp":
        return path in ("/health", "/v1/models")
    return not path.startswith("/v1/")


def models_page(script: Script) -> dict[str, Any]:
    """Return GET /v1/models."""
    entry: dict[str, Any] = {"id": script.model, "object": "model", "owned_by": script.kind}
    if script.kind == "vllm":
        entry["max_model_len"] = script.context
    else:
        entry["owned_by"] = "llamacpp"
        entry["meta"] = {"n_ctx": script.context, "n_params": 1, "size": 1}
    return {"object": "list", "data": [entry]}


def props_page(script: Script) -> dict[str, Any]:
    """Return llama.cpp's GET /props."""
    return {
        "total_slots": script.slots,
        "default_generation_settings": {"n_ctx": script.context, "params": {"n_predict": -1}},
        "model_alias": script.model,
        "model_path": f"{script.model}.gguf",
        "chat_template": "",
        "is_sleeping": False,
        "build_info": "witness",
    }


def slots_page(script: Script, counters: Counters) -> list[dict[str, Any]]:
    """Return llama.cpp's GET /slots."""
    return [
        {"id": number, "n_ctx": script.context, "is_processing": number < counters.running}
        for number in range(script.slots)
    ]


def metrics_page(script: Script, counters: Counters) -> tuple[str, bytes]:
    """Return content type and body of GET /metrics."""
    match script.metrics:
        case "html":
            return "text/html", b"<html><body>Not the page you look for</body></html>"
        case "huge":
            return "text/plain", b"# filler that nobody should keep in memory\n" * 240_000
        case "empty":
            return "text/plain", b""
    if script.kind == "llamacpp":
        return "text/plain; version=0.0.4", _llamacpp_metrics(counters)
    text = _vllm_metrics(script, counters)
    if script.metrics == "old":
        text = text.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    if script.metrics == "nan":
        text = "\n".join(f"{line.rpartition(' ')[0]} NaN" for line in text.splitlines())
    return "text/plain; version=1.0.0; charset=utf-8", text.encode()


def _llamacpp_metrics(counters: Counters) -> bytes:
    rows = {
        "prompt_tokens_total": counters.prompt - counters.cached,
        "prompt_tokens_cached_total": counters.cached,
        "tokens_predicted_total": counters.generated,
        "requests_processing": counters.running,
        "requests_deferred": counters.waiting,
    }
    return "".join(f"llamacpp:{name} {value}\n" for name, value in rows.items()).encode()


def _vllm_metrics(script: Script, counters: Counters) -> str:
    labels = f'{{engine="0",model_name="{script.model}"}}'
    used = min(1.0, counters.running / max(script.slots, 1))
    rows: dict[str, float] = {
        "num_requests_running": counters.running,
        "num_requests_waiting": counters.waiting,
        "kv_cache_usage_perc": used,
        "prompt_tokens_total": counters.prompt,
        "prompt_tokens_created": 1.7e9,
        "prompt_tokens_cached_total": counters.cached,
        "prefix_cache_queries_total": counters.prompt,
        "prefix_cache_hits_total": counters.cached,
        "generation_tokens_total": counters.generated,
        "num_preemptions_total": 0,
    }
    lines = [f"vllm:{name}{labels} {float(value)}" for name, value in rows.items()]
    for state, value in (("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0)):
        lines.append(
            f'vllm:engine_sleep_state{{engine="0",model_name="{script.model}",'
            f'sleep_state="{state}"}} {value}'
        )
    return "\n".join(lines) + "\n"
