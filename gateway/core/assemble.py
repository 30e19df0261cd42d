"""Puts the chunks of a stream together into the plain answer the engine would have given.

llama.cpp misses a client's leaving unless it streams, so it is always asked to stream; a client
that asked for a plain answer gets the same fields with the same values. Written for and compared
with llama.cpp's own answers; no I/O.
"""

from __future__ import annotations

import json
from typing import Any

Fields = dict[str, Any]


def chat(chunks: list[Fields]) -> Fields:
    """Assemble /v1/chat/completions."""
    choices: dict[int, Fields] = {}
    answer: Fields = {"choices": []}
    for chunk in chunks:
        for part in chunk.get("choices") or ():
            _add_chat(choices.setdefault(part.get("index", 0), {}), part)
        _add_common(answer, chunk, "chat.completion")
    answer["choices"] = [_chat_choice(choice, index) for index, choice in sorted(choices.items())]
    return answer


def _add_common(answer: Fields, chunk: Fields, kind: str) -> None:
    for name, value in chunk.items():
        if name == "object":
            answer["object"] = kind
        elif name != "choices" and not (name == "usage" and value is None):
            answer[name] = value


def _add_chat(choice: Fields, part: Fields) -> None:
    delta = part.get("delta") or {}
    message = choice.setdefault("message", {})
    for name, value in delta.items():
        if name == "tool_calls":
            _add_tool_calls(message.setdefault("tool_calls", {}), value or [])
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        else:
            message.setdefault(name, value)
    _add_ending(choice, part)


def _add_ending(choice: Fields, part: Fields) -> None:
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    if (logprobs := part.get("logprobs")) is not None:
        kept = choice.setdefault("logprobs", {})
        for name, value in logprobs.items():
            if isinstance(value, list):
                kept.setdefault(name, []).extend(value)
            else:
                kept[name] = value


def _add_tool_calls(calls: dict[int, Fields], parts: list[Fields]) -> None:
    for part in parts:
        call = calls.setdefault(part.get("index", 0), {})
        for name, value in part.items():
            if name == "function" and isinstance(value, dict):
                function = call.setdefault("function", {})
                for key, text in value.items():
                    joined = key == "arguments" and key in function
                    function[key] = function[key] + text if joined else text
            elif name != "index":
                call.setdefault(name, value)


def _chat_choice(choice: Fields, index: int) -> Fields:
    message = choice.get("message", {})
    ordered: Fields = {"role": message.pop("role", None) or "assistant"}
    calls = message.pop("tool_calls", None)
    # llama.cpp writes null only beside tool calls; an empty answer is an empty text.
    content = message.pop("content", None)
    ordered["content"] = content or ("" if not calls else None)
    ordered.update(message)
    if calls:
        ordered["tool_calls"] = [call for _, call in sorted(calls.items())]
    answer: Fields = {
        "finish_reason": choice.get("finish_reason"),
        "index": index,
        "message": ordered,
    }
    if "logprobs" in choice:
        answer["logprobs"] = choice["logprobs"]
    return answer


def completions(chunks: list[Fields]) -> Fields:
    """Assemble /v1/completions."""
    choices: dict[int, Fields] = {}
    answer: Fields = {"choices": []}
    for chunk in chunks:
        for part in chunk.get("choices") or ():
            choice = choices.setdefault(part.get("index", 0), {"text": ""})
            choice["text"] += part.get("text") or ""
            _add_ending(choice, part)
        _add_common(answer, chunk, "text_completion")
    answer["choices"] = [
        {
            "text": choice["text"],
            "index": index,
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice.get("finish_reason"),
        }
        for index, choice in sorted(choices.items())
    ]
    return answer


def responses(chunks: list[Fields]) -> Fields | None:
    """Return the whole answer that the last event of /v1/responses carries."""
    for chunk in reversed(chunks):
        response = chunk.get("response")
        if isinstance(response, dict) and response.get("status") != "in_progress":
            # Only the plain answer tells when it was completed: when the stream says created.
            return {"completed_at": response.get("created_at"), **response}
    return None


def messages(chunks: list[Fields]) -> Fields | None:
    """Assemble /v1/messages."""
    answer: Fields | None = None
    blocks: dict[int, Fields] = {}
    inputs: dict[int, str] = {}
    for chunk in chunks:
        kind = chunk.get("type")
        if kind == "message_start":
            answer = dict(chunk.get("message") or {})
        elif kind == "content_block_start":
            blocks[chunk.get("index", 0)] = dict(chunk.get("content_block") or {})
        elif kind == "content_block_delta":
            index = chunk.get("index", 0)
            _add_block(blocks.setdefault(index, {}), chunk.get("delta") or {}, inputs, index)
        elif kind == "message_delta" and answer is not None:
            answer.update(chunk.get("delta") or {})
            usage = {**(answer.get("usage") or {}), **(chunk.get("usage") or {})}
            answer["usage"] = usage
    if answer is None:
        return None
    for index, text in inputs.items():
        blocks[index]["input"] = _json_or_empty(text)
    answer["content"] = [block for _, block in sorted(blocks.items())]
    return answer


def _add_block(block: Fields, delta: Fields, inputs: dict[int, str], index: int) -> None:
    for name in ("text", "thinking", "signature"):
        if name in delta:
            block[name] = (block.get(name) or "") + delta[name]
    if "partial_json" in delta:
        inputs[index] = inputs.get(index, "") + delta["partial_json"]


def _json_or_empty(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}
