"""What an answer tells of itself: tokens, how it ended, errors; in the shape of each route.

Rule 1: an unknown number stays None; a chunk is not a token, it only stands for one when the
engine never told its count.
Rule 2: a stream is whole only with a finish reason and without an error; `[DONE]` proves nothing.
"""

from __future__ import annotations

from typing import Any

from gateway.core.fields import Kind

_ENDED_WELL = frozenset({"completed", "incomplete"})


class Usage:
    """What an answer told about itself."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "content_events", "done", "error_code",
        "error_message", "finish_reason", "prompt_tokens", "reasoning_tokens", "so_far",
    )  # fmt: skip

    def __init__(self) -> None:
        self.content_events = 0  # events that carried text, tool calls or reasoning
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.finish_reason = ""
        self.error_code = ""
        self.error_message = ""
        self.done = False  # `[DONE]` was seen
        #: Tokens of each choice, where the engine counts along.
        self.so_far: dict[int, int] | None = None

    @property
    def relayed(self) -> int:
        """Return how many tokens came, as far as is known: for answers that were cut."""
        return max(self.content_events, sum(self.so_far.values()) if self.so_far else 0)

    @property
    def whole(self) -> bool:
        """Did the answer reach its own end?"""
        return bool(self.finish_reason) and not self.error_code

    def take(self, usage: Any) -> None:
        """Read a usage object of any of the shapes; later ones complete earlier ones."""
        if not isinstance(usage, dict):
            return
        prompt = count(usage, "prompt_tokens", "input_tokens")
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        cached = count(details, "cached_tokens")
        if "cache_read_input_tokens" in usage:  # messages: input_tokens leaves cached ones out
            cached = count(usage, "cache_read_input_tokens")
            created = count(usage, "cache_creation_input_tokens") or 0
            if prompt is not None:
                prompt += (cached or 0) + created
        completion = count(usage, "completion_tokens", "output_tokens")
        details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
        reasoning = count(details, "reasoning_tokens")
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        self.cached_tokens = self.cached_tokens if cached is None else cached
        self.completion_tokens = self.completion_tokens if completion is None else completion
        self.reasoning_tokens = self.reasoning_tokens if reasoning is None else reasoning

    def count_along(self, chunk: dict[str, Any]) -> bool:
        """Take the count so far out of a chunk of content; False when there is none in it."""
        told, choices = chunk.get("usage"), chunk.get("choices")
        if not (isinstance(told, dict) and isinstance(choices, list) and choices):
            return False
        if not isinstance(choices[0], dict):
            return False
        del chunk["usage"]
        prompt, completion = count(told, "prompt_tokens"), count(told, "completion_tokens")
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        if completion is not None:
            self.so_far = self.so_far or {}
            self.so_far[count(choices[0], "index") or 0] = completion
        return True

    def fail(self, error: Any) -> None:
        """Read an error object."""
        fields = error if isinstance(error, dict) else {"message": str(error)}
        self.error_code = str(fields.get("code") or fields.get("type") or "engine_error")
        self.error_message = str(fields.get("message") or "")


def count(fields: Any, *names: str) -> int | None:
    """Return the first of the fields that holds a count; None where none does."""
    if not isinstance(fields, dict):
        return None
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def read_chunk(usage: Usage, chunk: dict[str, Any]) -> None:
    """Read one chat or completions chunk."""
    for choice in chunk.get("choices") or ():
        if not isinstance(choice, dict):
            continue
        if reason := choice.get("finish_reason"):
            usage.finish_reason = str(reason)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if (
                delta.get("content")
                or delta.get("reasoning_content")
                or delta.get("reasoning")
                or delta.get("tool_calls")
                or delta.get("refusal")
            ):
                usage.content_events += 1
        elif choice.get("text"):
            usage.content_events += 1
    if told := chunk.get("usage"):
        usage.take(told)
    if error := chunk.get("error"):
        usage.fail(error)


def read_response_event(usage: Usage, chunk: dict[str, Any]) -> None:
    """Read one event of /v1/responses."""
    name = str(chunk.get("type", ""))
    if name.endswith(".delta"):
        usage.content_events += 1
    response = chunk.get("response")
    if isinstance(response, dict):
        usage.take(response.get("usage"))
        status = response.get("status")
        if status in _ENDED_WELL:
            usage.finish_reason = str(status)
        elif status == "failed":
            usage.fail(response.get("error") or {"code": "failed"})
    if name == "error" or chunk.get("error"):
        usage.fail(chunk.get("error") or chunk)


def read_message_event(usage: Usage, chunk: dict[str, Any]) -> None:
    """Read one event of /v1/messages."""
    name = chunk.get("type")
    if name == "content_block_delta":
        usage.content_events += 1
    elif name == "message_start":
        usage.take((chunk.get("message") or {}).get("usage"))
    elif name == "message_delta":
        usage.take(chunk.get("usage"))
        if reason := (chunk.get("delta") or {}).get("stop_reason"):
            usage.finish_reason = str(reason)
    if name == "error" or chunk.get("error"):
        usage.fail(chunk.get("error") or chunk)


READERS = {Kind.RESPONSES: read_response_event, Kind.MESSAGES: read_message_event}
