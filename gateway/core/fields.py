"""What a request body asks for, and the body that an engine gets instead of it.

Rule 1: the body is parsed once, strictly, and built anew: an engine sees each name once, and only
names from the list of its kind. Whatever decides about order, slots, caches or other people is set
by the gateway or not at all.
Rule 2: what would run unbounded, hold more slots than stated or make the engine fetch an address
that a user chose is refused here, whatever the engine would do with it.
Rule 3: no I/O, no clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import orjson

from gateway.core.prompt import COMPLETIONS, BadField, Kind, Prompt, Rules

__all__ = ["BadField", "Kind", "Rules"]

ROUTES: Final = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETIONS,
    "/v1/embeddings": Kind.EMBEDDINGS,
    "/v1/responses": Kind.RESPONSES,
    "/v1/messages": Kind.MESSAGES,
    "/v1/messages/count_tokens": Kind.COUNT_TOKENS,
}
PATH_OF = {kind: path for path, kind in ROUTES.items()}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


GENERATES: Final = frozenset({Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES, Kind.MESSAGES})
# Routes whose errors have Anthropic's shape.
MESSAGES_SHAPE = frozenset({Kind.MESSAGES, Kind.COUNT_TOKENS})
# Routes on which engines take stream_options.include_usage.
TELLS_USAGE_ON_DEMAND: Final = frozenset({Kind.CHAT, Kind.COMPLETIONS})

_SAMPLING = _names(
    "temperature top_p top_k min_p seed stop frequency_penalty presence_penalty repetition_penalty"
    " repeat_penalty repeat_last_n typical_p logit_bias logprobs top_logprobs ignore_eos min_tokens"
    " stop_token_ids bad_words skip_special_tokens spaces_between_special_tokens"
    " include_stop_str_in_output structured_outputs guided_json guided_regex guided_choice"
    " guided_grammar grammar json_schema response_format dynatemp_range dynatemp_exponent mirostat"
    " mirostat_tau mirostat_eta dry_multiplier dry_base dry_allowed_length dry_penalty_last_n"
    " dry_sequence_breakers xtc_probability xtc_threshold samplers n_probs length_penalty"
    " timings_per_token"
)
_COMMON = frozenset({"model", "user", "metadata"})
ALLOWED: dict[Kind, frozenset[str]] = {
    Kind.CHAT: _COMMON
    | _SAMPLING
    | _names(
        "messages tools tool_choice parallel_tool_calls functions function_call n max_tokens"
        " max_completion_tokens reasoning_effort reasoning_format include_reasoning"
        " thinking_budget_tokens chat_template_kwargs add_generation_prompt continue_final_message"
        " modalities prediction verbosity"
    ),
    Kind.COMPLETIONS: _COMMON | _SAMPLING | _names("prompt suffix echo n best_of max_tokens"),
    Kind.EMBEDDINGS: _names("model input user encoding_format dimensions truncate_prompt_tokens"),
    Kind.RESPONSES: _COMMON
    | _names(
        "input instructions max_output_tokens temperature top_p top_logprobs tools tool_choice"
        " parallel_tool_calls max_tool_calls reasoning text truncation include store"
        " safety_identifier"
    ),
    Kind.MESSAGES: _COMMON
    | _names(
        "messages system max_tokens temperature top_p top_k stop_sequences tools tool_choice"
        " thinking output_config"
    ),
    Kind.COUNT_TOKENS: _names("model messages system tools tool_choice thinking"),
}
_MAX_TOKENS_FIELDS: Final = {
    Kind.CHAT: ("max_completion_tokens", "max_tokens"),
    Kind.COMPLETIONS: ("max_tokens",),
    Kind.RESPONSES: ("max_output_tokens",),
    Kind.MESSAGES: ("max_tokens",),
}
# Names a client can never send through, whatever an installation allows on top: they decide about
# order, slots or other people's caches, or are other names for a limit.
NEVER_FROM_CLIENTS = _names(
    "priority request_id id_slot kv_transfer_params vllm_xargs cache_salt n_predict n_cmpl"
    " use_beam_search data_parallel_rank stream stream_options extra_body logits_processors"
    " prompt_embeds chat_template mm_processor_kwargs service_tier"
)
_COMPLETES: Final = frozenset({Kind.CHAT, Kind.COMPLETIONS})  # several choices may be asked for
_SHOWN_DROPPED = 20
_SET_ANEW = frozenset({"stream", "stream_options", "service_tier"})
TIERS = frozenset({"auto", "default", "flex", "priority", "scale", "standard_only"})


class Asked:
    """One body, understood."""

    __slots__ = (
        "characters", "dropped", "fields", "images", "include_usage", "kept", "kind", "max_tokens",
        "model", "prompt_ids", "stream", "tier", "weight",
    )  # fmt: skip

    def __init__(self, kind: Kind, fields: dict[str, Any], rules: Rules) -> None:
        model = fields.get("model")
        if not isinstance(model, str) or not model:
            raise BadField("The field `model` must name a model.", "model", "model_missing")
        prompt = Prompt(rules)
        prompt.read(kind, fields)
        options = fields.get("stream_options")
        allowed, known = _names_of(kind, rules.extra_fields)
        self.kind: Final = kind
        self.model: Final = model
        self.stream: Final = _stream(fields) if kind in GENERATES else False
        #: Does the client want the usage chunk?
        self.include_usage: Final = (
            isinstance(options, dict) and options.get("include_usage") is True
        )
        self.weight: Final = _weight(kind, fields, prompt.count)  # sequences made side by side
        self.max_tokens: Final = _max_tokens(kind, fields)
        self.characters: Final = prompt.characters  # of the prompt, as text
        self.prompt_ids: Final = prompt.ids  # its tokens, where it was given as tokens
        self.images: Final = prompt.images  # pictures and sounds in it
        self.tier: Final = _tier(fields)  # that it names, "" for none: "flex" runs as batch
        self.fields: Final = fields  # the whole body
        self.kept: Final = allowed  # names that may go on to an engine
        self.dropped: Final = _dropped(fields, known)  # names that may not


def read(kind: Kind, body: bytes, rules: Rules) -> Asked:
    """Understand a body, or say what is wrong with it."""
    return Asked(kind, _parse(body), rules)


@lru_cache
def _names_of(kind: Kind, extra: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that may go on to an engine, and with them those that are set anew."""
    allowed = (ALLOWED[kind] | extra) - NEVER_FROM_CLIENTS
    return allowed, allowed | _SET_ANEW


def _dropped(fields: dict[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    """Return the names that go no further, for the client to see."""
    gone = [name for name in fields if name not in known]
    return tuple(sorted(gone))[:_SHOWN_DROPPED] if gone else ()


def _parse(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadField(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise BadField("The body must be a JSON object.", code="invalid_json")
    return fields


def _stream(fields: dict[str, Any]) -> bool:
    value = fields.get("stream")
    if value is None or value is False:
        return False
    if value is True:
        return True
    if value in (0, "false"):
        return False
    raise BadField("`stream` must be true or false.", "stream")


def _tier(fields: dict[str, Any]) -> str:
    """Return the tier a body names; which tier it gets is said with the answer."""
    value = fields.get("service_tier")
    if value is None:
        return ""
    if not isinstance(value, str) or value not in TIERS:
        raise BadField("`service_tier` must be auto, default or flex.", "service_tier")
    return value


def _integer(fields: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadField(f"`{name}` must be a whole number from {low} to {high}.", name)
    return value


def _max_tokens(kind: Kind, fields: dict[str, Any]) -> int | None:
    least = None
    for name in _MAX_TOKENS_FIELDS.get(kind, ()):
        value = _integer(fields, name, 1, 2**31 - 1)
        if value is not None and (least is None or value < least):
            least = value
    return least


def _weight(kind: Kind, fields: dict[str, Any], prompts: int) -> int:
    if kind not in _COMPLETES:
        return 1
    n = _integer(fields, "n", 1, 1024) or 1
    best_of = _integer(fields, "best_of", 1, 1024) if kind is COMPLETIONS else None
    if best_of is not None and best_of < n:
        raise BadField("`best_of` must not be less than `n`.", "best_of")
    return max(n, best_of or 1) * max(prompts, 1)


class Orders:
    """What the gateway sets in the body for one replica."""

    __slots__ = ("cache_salt", "counts_along", "max_tokens", "model", "priority", "stream")

    def __init__(
        self,
        model: str,  # the engine's own name of the model
        stream: bool,  # asked of the engine, whatever the client asked
        max_tokens: int | None = None,  # set when the client gave none and a limit stands
        priority: int | None = None,
        cache_salt: str | None = None,
        counts_along: bool = False,  # the engine can tell in each event what it has written so far
    ) -> None:
        self.model: Final = model
        self.stream: Final = stream
        self.max_tokens: Final = max_tokens
        self.priority: Final = priority
        self.cache_salt: Final = cache_salt
        self.counts_along: Final = counts_along


def build(asked: Asked, orders: Orders) -> bytes:
    """Write the body for the engine."""
    fields = {name: value for name, value in asked.fields.items() if name in asked.kept}
    fields["model"] = orders.model
    if asked.kind in GENERATES:
        fields["stream"] = orders.stream
        if orders.stream and asked.kind in TELLS_USAGE_ON_DEMAND:
            options = {"include_usage": True}
            if orders.counts_along:
                options["continuous_usage_stats"] = True
            fields["stream_options"] = options
        if orders.max_tokens is not None and asked.max_tokens is None:
            fields[_MAX_TOKENS_FIELDS[asked.kind][-1]] = orders.max_tokens
    if orders.priority is not None:
        fields["priority"] = orders.priority
    if orders.cache_salt is not None:
        fields["cache_salt"] = orders.cache_salt
    return orjson.dumps(fields)
