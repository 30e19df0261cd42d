"""Guesses what a request will cost before it has run.

Rule 1: a guess is replaced by the engine's own number as soon as there is one.
Rule 2: no I/O, no clock; memory is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FIRST_TOKENS_PER_CHARACTER: Final = 0.3
FIRST_OUTPUT: Final = 256
OUTPUT_LIMIT: Final = 512
TOKENS_PER_IMAGE: Final = 800
_LEARN: Final = 0.1  # weight of the newest observation in a moving average
_SESSIONS: Final = 20_000


class Estimator:
    """Moving averages per model and per flow, and what each session last held in cache."""

    def __init__(self) -> None:
        self._per_character: dict[str, float] = {}
        self._output: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._sessions: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def prompt_tokens(self, pool: str, characters: int, ids: int = 0, images: int = 0) -> int:
        """Guess the length of a prompt."""
        rate = self._per_character.get(pool, FIRST_TOKENS_PER_CHARACTER)
        return max(1, int(characters * rate + 0.5) + ids + images * TOKENS_PER_IMAGE)

    def output_tokens(self, user_id: str, pool: str, max_tokens: int | None) -> int:
        """Guess the length of an answer: what was asked, what this flow usually takes, 512."""
        usual = int(self._output.get((user_id, pool), FIRST_OUTPUT) + 0.5)
        return max(1, min(usual, min(max_tokens or OUTPUT_LIMIT, OUTPUT_LIMIT)))

    def cached_tokens(self, session: str) -> int:
        """Guess how much of the next turn's prompt is warm on the session's replica."""
        return self._sessions.get(session, ("", 0))[1]

    def learn_prompt(self, pool: str, characters: int, prompt_tokens: int) -> None:
        """Note how many tokens a text of this length really had."""
        if characters < 20 or prompt_tokens < 1:
            return
        seen = min(2.0, prompt_tokens / characters)
        before = self._per_character.get(pool, FIRST_TOKENS_PER_CHARACTER)
        self._per_character[pool] = before + _LEARN * (seen - before)

    def learn_output(self, user_id: str, pool: str, completion_tokens: int) -> None:
        """Note how long an answer really was."""
        flow = (user_id, pool)
        before = self._output.pop(flow, float(FIRST_OUTPUT))
        self._output[flow] = before + _LEARN * (completion_tokens - before)
        while len(self._output) > _SESSIONS:
            self._output.popitem(last=False)

    def learn_session(self, session: str, replica_id: str, total_tokens: int) -> None:
        """Note what a session left in the cache of the replica that served it."""
        if not session:
            return
        self._sessions.pop(session, None)
        self._sessions[session] = (replica_id, total_tokens)
        while len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
