"""How long an engine may take; held against every running request twice a second."""

from __future__ import annotations

from gateway.answer import Answer
from gateway.config import Config
from gateway.errors import EngineTimeout, GatewayError
from gateway.intake import Order


def passed(answer: Answer, order: Order, config: Config, now: float) -> GatewayError | None:
    """Return the limit that an answer has passed."""
    running_s = now - answer.started_s
    if running_s > config.total_s:
        return EngineTimeout("The answer took too long.", code="total_timeout")
    if not answer.is_asked_to_stream:
        return None  # a plain answer comes as one piece at its end
    if answer.first_content_s is None:
        if running_s > config.first_byte_s + order.prefill_s:
            return EngineTimeout("The engine gave no answer in time.", code="engine_timeout")
    elif now - answer.last_live_s > config.idle_stream_s and not answer.paused:
        return EngineTimeout("The engine went silent.", code="engine_silent")
    return None
