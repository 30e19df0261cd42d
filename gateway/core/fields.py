"""What a request body asks for, and the body that an engine gets instead of it.

Rule 1: the body is parsed once, strictly, and built anew: an engine sees each name once, and only
names from the list of its kind. Whatever decides about order, slots, caches or other people is set
by the gateway or not at all.
Rule 2: what would run unbounded, hold more slots than stated or make the engine fetch an address
that a user chose is refused here, whatever the engine would do with it.
Rule 3: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import orjson


class Kind(StrEnum):
    """The shape of a route's body and answer."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"


ROUTES = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETIONS,
    "/v1/embeddings": Kind.EMBEDDINGS,
    "/v1/responses": Kind.RESPONSES,
    "/v1/messages": Kind.MESSAGES,
    "/v1/messages/count_tokens": Kind.COUNT_TOKENS,
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


GENERATES = frozenset({Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES, Kind.MESSAGES})
# Routes whose errors have Anthropic's shape.
MESSAGES_SHAPE = frozenset({Kind.MESSAGES, Kind.COUNT_TOKENS})
# Routes on which engines take stream_options.include_usage.
TELLS_USAGE_ON_DEMAND = frozenset({Kind.CHAT, Kind.COMPLETIONS})

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
_PROMPT_FIELD = {
    Kind.CHAT: "messages",
    Kind.COMPLETIONS: "prompt",
    Kind.EMBEDDINGS: "input",
    Kind.RESPONSES: "input",
    Kind.MESSAGES: "messages",
    Kind.COUNT_TOKENS: "messages",
}
_MAX_TOKENS_FIELDS = {
    Kind.CHAT: ("max_completion_tokens", "max_tokens"),
    Kind.COMPLETIONS: ("max_tokens",),
    Kind.RESPONSES: ("max_output_tokens",),
    Kind.MESSAGES: ("max_tokens",),
}
_CONVERSES = frozenset({Kind.CHAT, Kind.MESSAGES, Kind.COUNT_TOKENS})
_NOT_TEXT = _names("type id role detail media_type format name call_id tool_call_id")
_DEPTH_LIMIT = 64
# Names a client can never send through, whatever an installation allows on top: they decide about
# order, slots or other people's caches, or are other names for a limit.
NEVER_FROM_CLIENTS = _names(
    "priority request_id id_slot kv_transfer_params vllm_xargs cache_salt n_predict n_cmpl"
    " use_beam_search data_parallel_rank stream stream_options extra_body logits_processors"
    " prompt_embeds chat_template mm_processor_kwargs"
)
_SET_ANEW = frozenset({"stream", "stream_options"})


class BadField(ValueError):
    """The body asks for something it may not or cannot have."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_request"):
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class Rules:
    """What the installation allows."""

    extra_fields: frozenset[str] = frozenset()
    media_hosts: frozenset[str] = frozenset()
    embedding_inputs: int = 2048


@dataclass(frozen=True, slots=True)
class Asked:
    """One body, understood."""

    kind: Kind
    model: str
    stream: bool
    include_usage: bool  # the client wants the usage chunk
    weight: int  # sequences generated side by side
    max_tokens: int | None
    characters: int  # of the prompt, as text
    prompt_ids: int  # tokens of the prompt, where it was given as tokens
    images: int  # pictures and sounds in it
    fields: dict[str, Any]  # the whole body
    kept: frozenset[str]  # names that may go on to an engine
    dropped: tuple[str, ...]  # names that may not


def read(kind: Kind, body: bytes, rules: Rules) -> Asked:
    """Understand a body, or say what is wrong with it."""
    fields = _parse(body)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise BadField("The field `model` must name a model.", "model", "model_missing")
    allowed = (ALLOWED[kind] | rules.extra_fields) - NEVER_FROM_CLIENTS
    prompt = _Prompt(rules)
    prompt.read(kind, fields)
    options = fields.get("stream_options")
    return Asked(
        kind=kind,
        model=model,
        stream=_stream(fields) if kind in GENERATES else False,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        weight=_weight(kind, fields, prompt.count),
        max_tokens=_max_tokens(kind, fields),
        characters=prompt.characters,
        prompt_ids=prompt.ids,
        images=prompt.images,
        fields=fields,
        kept=allowed,
        dropped=tuple(sorted(fields.keys() - allowed - _SET_ANEW))[:20],
    )


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
    if value is True:
        return True
    if value in (None, False, 0, "false"):
        return False
    raise BadField("`stream` must be true or false.", "stream")


def _integer(fields: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadField(f"`{name}` must be a whole number from {low} to {high}.", name)
    return value


def _max_tokens(kind: Kind, fields: dict[str, Any]) -> int | None:
    found = [
        value
        for name in _MAX_TOKENS_FIELDS.get(kind, ())
        if (value := _integer(fields, name, 1, 2**31 - 1)) is not None
    ]
    return min(found, default=None)


def _weight(kind: Kind, fields: dict[str, Any], prompts: int) -> int:
    if kind not in (Kind.CHAT, Kind.COMPLETIONS):
        return 1
    n = _integer(fields, "n", 1, 1024) or 1
    best_of = _integer(fields, "best_of", 1, 1024) if kind is Kind.COMPLETIONS else None
    if best_of is not None and best_of < n:
        raise BadField("`best_of` must not be less than `n`.", "best_of")
    return max(n, best_of or 1) * max(prompts, 1)


class _Prompt:
    """Walks the prompt once: counts it and looks at the addresses in it."""

    def __init__(self, rules: Rules) -> None:
        self.characters = 0
        self.ids = 0
        self.count = 1  # prompts in one body
        self.images = 0
        self._rules = rules

    def read(self, kind: Kind, fields: dict[str, Any]) -> None:
        name = _PROMPT_FIELD[kind]
        value = fields.get(name)
        if value is None or value == [] or value == "":
            raise BadField(f"`{name}` must not be missing or empty.", name)
        if kind in _CONVERSES or (kind is Kind.RESPONSES and isinstance(value, list)):
            self._messages(value, name)
        else:
            self._prompts(kind, value, name)
        for part in ("system", "instructions"):
            if part in ALLOWED[kind] and fields.get(part):
                self._text(fields[part], part)
        for part in ("tools", "functions"):
            if part in ALLOWED[kind] and fields.get(part):
                self.characters += len(orjson.dumps(fields[part]))

    def _messages(self, messages: Any, name: str) -> None:
        if not isinstance(messages, list):
            raise BadField(f"`{name}` must be a list.", name)
        for number, message in enumerate(messages):
            if not isinstance(message, dict):
                raise BadField(f"`{name}[{number}]` must be an object.", name)
            if not isinstance(message.get("role"), str) and "type" not in message:
                raise BadField(f"`{name}[{number}].role` must be a text.", name)
            content = message.get("content")
            if isinstance(content, str):
                self.characters += len(content)
            else:
                self._text(content, f"{name}[{number}].content")
            for extra in ("tool_calls", "arguments", "output", "reasoning_content"):
                if value := message.get(extra):
                    self._text(value, f"{name}[{number}].{extra}")

    def _prompts(self, kind: Kind, value: Any, name: str) -> None:
        if isinstance(value, str):
            self.characters += len(value)
            return
        if not isinstance(value, list):
            raise BadField(f"`{name}` must be a text, tokens, or a list of them.", name)
        if type(value[0]) is int:
            self._ids(value, name)
            return
        limit = self._rules.embedding_inputs
        if kind is Kind.EMBEDDINGS and len(value) > limit:
            raise BadField(f"`{name}` may hold at most {limit} inputs.", name)
        self.count = len(value)
        for one in value:
            if isinstance(one, list):
                self._ids(one, name)
            elif isinstance(one, str):
                self.characters += len(one)
            else:
                raise BadField(f"`{name}` must be a text, tokens, or a list of them.", name)

    def _ids(self, value: list[Any], name: str) -> None:
        if not value or not all(type(token) is int and token >= 0 for token in value):
            raise BadField(f"`{name}` must be a list of token numbers.", name)
        self.ids += len(value)

    def _text(self, content: Any, where: str, depth: int = 0) -> None:
        """Count a content of any shape."""
        if isinstance(content, str):
            self.characters += len(content)
            return
        if depth > _DEPTH_LIMIT:
            raise BadField(f"`{where}` is nested too deep.", where)
        if isinstance(content, list):
            for part in content:
                self._text(part, where, depth + 1)
        elif isinstance(content, dict):
            for name, value in content.items():
                self._named(content, name, value, where, depth)

    def _named(
        self, content: dict[str, Any], name: str, value: Any, where: str, depth: int
    ) -> None:
        if _names_an_address(name):
            self._address(value, f"{where}.{name}")
        elif name == "data" and isinstance(value, str):
            self.images += 1  # inline bytes are not text
        elif name not in _NOT_TEXT:
            self._text(value, where, depth + 1)

    def _address(self, value: Any, where: str) -> None:
        if isinstance(value, dict):
            self._text(value, where)
            return
        if not isinstance(value, str):
            return
        self.images += 1
        if value[:5].lower() == "data:":
            return
        try:
            parts = urlsplit(value)
            host = (parts.hostname or "").lower()
        except ValueError:
            parts, host = None, ""
        if (
            parts is None
            or parts.scheme not in ("http", "https")
            or (host not in self._rules.media_hosts or parts.username is not None)
        ):
            raise BadField(
                f"`{where}` must hold the data itself (data:…): this installation does not let "
                "an engine fetch addresses.",
                where,
                "remote_media_refused",
            )


def _names_an_address(name: str) -> bool:
    """Would an engine fetch what stands under this name of a content part?"""
    lowered = name.lower()
    return lowered == "url" or lowered.endswith("_url")


@dataclass(frozen=True, slots=True)
class Orders:
    """What the gateway sets in the body for one replica."""

    model: str  # the engine's own name of the model
    stream: bool  # asked of the engine, whatever the client asked
    max_tokens: int | None = None  # set when the client gave none and a limit stands
    priority: int | None = None
    cache_salt: str | None = None


def build(asked: Asked, orders: Orders) -> bytes:
    """Write the body for the engine."""
    fields = {name: value for name, value in asked.fields.items() if name in asked.kept}
    fields["model"] = orders.model
    if asked.kind in GENERATES:
        fields["stream"] = orders.stream
        if orders.stream and asked.kind in TELLS_USAGE_ON_DEMAND:
            fields["stream_options"] = {"include_usage": True}
        if orders.max_tokens is not None and asked.max_tokens is None:
            fields[_MAX_TOKENS_FIELDS[asked.kind][-1]] = orders.max_tokens
    if orders.priority is not None:
        fields["priority"] = orders.priority
    if orders.cache_salt is not None:
        fields["cache_salt"] = orders.cache_salt
    return orjson.dumps(fields)
