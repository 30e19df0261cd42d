"""Walks the prompt of a body once: counts it, and looks at the addresses in it.

Rule 1: an engine fetches no address that a user chose, however it is spelled and wherever in a
content part it stands; `data:` and hosts the installation lists pass.
Rule 2: no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

import orjson


class Kind(StrEnum):
    """The shape of a route's body and answer."""

    __hash__ = str.__hash__  # as its text; an enum's own is slow
    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"


# Members of an enum are slow to look up.
COMPLETIONS: Final = Kind.COMPLETIONS
EMBEDDINGS: Final = Kind.EMBEDDINGS
RESPONSES: Final = Kind.RESPONSES


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


_PROMPT_FIELD: Final = {
    Kind.CHAT: "messages",
    Kind.COMPLETIONS: "prompt",
    Kind.EMBEDDINGS: "input",
    Kind.RESPONSES: "input",
    Kind.MESSAGES: "messages",
    Kind.COUNT_TOKENS: "messages",
}
_CONVERSES: Final = frozenset({Kind.CHAT, Kind.MESSAGES, Kind.COUNT_TOKENS})
_NOT_TEXT = frozenset(
    ("type", "id", "role", "detail", "media_type", "format", "name", "call_id", "tool_call_id")
)
_DEPTH_LIMIT = 64


class Prompt:
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
        if kind in _CONVERSES or (kind is RESPONSES and isinstance(value, list)):
            self._messages(value, name)
        else:
            self._prompts(kind, value, name)
        for part in ("system", "instructions"):
            if fields.get(part):
                self._text(fields[part], part)
        for part in ("tools", "functions"):
            if fields.get(part):
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
                if len(message) == 2:
                    continue  # a role and a text, as most have
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
        if kind is EMBEDDINGS and len(value) > limit:
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
