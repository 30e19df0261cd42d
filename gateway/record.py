"""How a request ended and what it used, in the words of the books."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

import orjson

from gateway.answer import Answer
from gateway.client import Client
from gateway.core.types import Grant, Outcome
from gateway.errors import GatewayError, Stopped
from gateway.intake import Order
from gateway.upstream import Closed

# Members of an enum are slow to look up.
SERVED: Final = Outcome.SERVED
FAILED: Final = Outcome.FAILED
_WORDS: Final = {one: one.value for one in Outcome}  # to JSON, a member is dearer than its text
_CODE_LENGTH = 64
_BROKEN = frozenset({"abort", "error"})  # finish reasons of engines that gave up


class Story:
    """What is known of one request so far; the record is written from it."""

    __slots__ = ("answer", "client", "expired", "grant", "order", "status")

    def __init__(self, order: Order, client: Client) -> None:
        self.order = order
        self.client = client
        self.grant: Grant | None = None
        self.answer: Answer | None = None
        self.status = 0  # what the client was told
        self.expired: GatewayError | None = None  # a limit of ours that was passed

    def outcome(self) -> Outcome:
        """Return how a request ended that was given a slot."""
        answer = self.answer
        if self.client.gone and (answer is None or answer.error is not None):
            return Outcome.ABORTED
        if isinstance(self.expired, Stopped):
            return Outcome.ABORTED
        if answer is None or answer.error is not None or answer.status != 200 or self.expired:
            return FAILED
        usage = answer.usage
        if usage.error_code or usage.finish_reason in _BROKEN:
            return FAILED
        if answer.is_stream and not usage.whole:
            return FAILED
        return SERVED

    def evicted_as(self, *, is_draining: bool) -> Outcome:
        """Return how a request ended that left the queue by our or its client's wish."""
        if self.client.gone or isinstance(self.expired, Stopped):
            return Outcome.EVICTED_CLIENT_GONE
        if is_draining:
            return Outcome.EVICTED_SHUTTING_DOWN
        told = None if self.expired is None else self.expired.outcome
        return told or Outcome.EVICTED_TIMED_OUT

    def prompt_tokens(self) -> int:
        """Return the engine's count, or ours when it took the prompt and told none."""
        answer = self.answer
        if answer is None:
            return 0
        told = answer.usage.prompt_tokens
        if told is not None:
            return told
        return self.order.prompt_tokens if self._engine_worked() else 0

    def completion_tokens(self) -> int:
        """Return the engine's count, or as many tokens as came."""
        if self.answer is None:
            return 0
        usage = self.answer.usage
        if usage.completion_tokens is None:
            return usage.relayed
        if self.order.asked.weight > 1:
            # llama.cpp tells them choice by choice, so one that was cut may have told of some.
            return max(usage.completion_tokens, usage.content_events)
        return usage.completion_tokens

    def first_content_s(self) -> float | None:
        """Return when the first content came; of a plain answer that is when it came at all."""
        answer = self.answer
        if answer is None or answer.first_content_s is not None or answer.status != 200:
            return answer.first_content_s if answer else None
        return answer.last_live_s if answer.passed and not answer.is_stream else None

    def is_estimated(self) -> bool:
        """Did the engine take the prompt and never say what it used?"""
        answer = self.answer
        if answer is None or not self._engine_worked():
            return False
        return answer.usage.prompt_tokens is None or answer.usage.completion_tokens is None

    def _engine_worked(self) -> bool:
        """Did an engine read the prompt, as far as we can know?"""
        answer = self.answer
        if answer is None or answer.status not in (0, 200):
            return False
        was_left = self.client.gone and isinstance(answer.error, Closed)
        return answer.passed > 0 or was_left

    def interrupted(self) -> bytes:
        """Return the record to be written if this process dies with the request."""
        return self._record(Outcome.INTERRUPTED, self.order.prompt_tokens, estimated=True)

    def record(self, outcome: Outcome) -> bytes:
        """Return the record of a request that has ended."""
        return self._record(outcome, self.prompt_tokens(), estimated=self.is_estimated())

    def _record(self, outcome: Outcome, prompt_tokens: int, *, estimated: bool) -> bytes:
        order, client, grant, answer = self.order, self.client, self.grant, self.answer
        usage = answer.usage if answer else None
        first_s = self.first_content_s()
        now_s = client.loop.time()
        rest = {
            "outcome": _WORDS[outcome],
            "status": self._told_status(),
            "prompt_tokens": prompt_tokens,
            "cached_tokens": usage.cached_tokens if usage else None,
            "completion_tokens": self.completion_tokens(),
            "reasoning_tokens": usage.reasoning_tokens if usage else None,
            "estimated": estimated,
            "queue_wait_ms": grant.queue_wait_ms if grant else None,
            "ttft_ms": _ms(first_s - client.arrived_s) if first_s else None,
            "duration_ms": _ms(now_s - client.arrived_s),
            "finish_reason": usage.finish_reason if usage else "",
            "error_code": self._error_code(outcome),
            "stream": order.asked.stream,
            "client_request_id": order.client_request_id,
        }
        return b'{"request_id":"%b","arrived_at":"%b",%b,"replica_id":%b,%b' % (
            client.request_id.encode(),
            stamp(client.arrived_at),
            order.way.written,
            orjson.dumps(grant.replica_id) if grant else b'""',
            orjson.dumps(rest)[1:],
        )

    def _told_status(self) -> int:
        """Return what the client was told, or is being told now that the engine has ended."""
        if self.status or self.client.gone or self.answer is None:
            return self.status
        return self.answer.status

    def _error_code(self, outcome: Outcome) -> str:
        if self.expired is not None:
            return self.expired.code
        answer = self.answer
        if outcome is not FAILED or answer is None:
            return ""
        if answer.usage.error_code:
            return answer.usage.error_code[:_CODE_LENGTH]
        if answer.error is not None:
            return "engine_unreachable"
        return f"engine_{answer.status}" if answer.status != 200 else "engine_stream_broken"


def _ms(seconds: float) -> int:
    return int(seconds * 1000 + 0.5)


def stamp(at_s: float) -> bytes:
    """Return an instant as ISO 8601 in UTC, with microseconds."""
    seconds = int(at_s)
    digits = b"%d" % (1_000_000 + int((at_s - seconds) * 1e6))
    return b"%b.%b+00:00" % (_second(seconds), digits[1:])  # six, with their zeros


@lru_cache(maxsize=64)
def _second(seconds: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode()
