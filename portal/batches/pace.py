"""How long one line of a model takes, read from what its requests took lately.

Rule 1: a slot is held for a fixed part, a part for each prompt token that is read and a part for
each token that is written; the parts are the straight lines that fit the books best.
Rule 2: an answer that was cut off by its limit says only that it would have been longer; what
answers do under another limit is the area under their survival curve (Kaplan and Meier's).
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from django.utils import timezone

from quotas.models import UsageEvent

LATELY = dt.timedelta(days=7)
SAMPLE = 400
BATCH = "batch"
OWN_FROM = 8  # lines of one's own from which their answers tell more than other people's
CUT = frozenset({"length", "incomplete", "max_tokens"})  # finish reasons of a limit reached
# Prompts must differ by this part of their mean before their lengths can explain a difference.
SPREAD_OF_PROMPTS = 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """One served request of the books."""

    user_id: int
    service_class: str
    completion_tokens: int
    duration_ms: int
    queue_wait_ms: int | None
    ttft_ms: int | None
    prompt_tokens: int
    cached_tokens: int | None
    stream: bool
    finish_reason: str

    @property
    def held_s(self) -> float:
        """Return how long it held its slot."""
        return max(0.0, self.duration_ms - (self.queue_wait_ms or 0)) / 1000

    @property
    def reading_s(self) -> float:
        """Return how long its prompt was read; only a stream shows when that was over."""
        if not self.stream or self.ttft_ms is None:
            return 0.0
        return min(self.held_s, max(0.0, self.ttft_ms - (self.queue_wait_ms or 0)) / 1000)

    @property
    def read_tokens(self) -> int:
        """Return the prompt tokens that no cache held."""
        return max(1, self.prompt_tokens - (self.cached_tokens or 0))


class Lengths:
    """How long answers are, from answers of which some were cut off."""

    def __init__(self, seen: Iterable[tuple[int, bool]]) -> None:
        """Take each answer's tokens, and whether it was cut."""
        ordered = sorted(seen)
        self._tokens, self._longer, self._area = [0], [1.0], [0.0]
        for number, (tokens, is_cut) in enumerate(ordered):
            if is_cut:
                continue
            self._area.append(self._area[-1] + (tokens - self._tokens[-1]) * self._longer[-1])
            self._longer.append(self._longer[-1] * (1 - 1 / (len(ordered) - number)))
            self._tokens.append(tokens)
        self._longest = ordered[-1][0] if ordered else 0

    def mean(self, most: int | None = None) -> float:
        """Return the mean length when none may be longer than `most`."""
        end = self._longest if most is None else min(most, self._longest)
        at = bisect_right(self._tokens, end) - 1
        return self._area[at] + (end - self._tokens[at]) * self._longer[at]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one line holds a slot, and how long answers are."""

    fixed_s: float
    prompt_token_s: float
    output_token_s: float
    lengths: Lengths

    def seconds(self, lines: float, prompt_tokens: float, output_tokens: float) -> float:
        """Return how long lines with so many tokens in all hold slots."""
        return (
            lines * self.fixed_s
            + prompt_tokens * self.prompt_token_s
            + output_tokens * self.output_token_s
        )


def pace_of(model: str, owner_id: int) -> Pace | None:
    """Read from the books how long requests of this model took; None: there are none yet."""
    since = timezone.now() - LATELY
    lately = UsageEvent.objects.filter(
        model=model, arrived_at__gt=since, outcome="served", completion_tokens__gt=0
    ).order_by("-arrived_at")
    rows = lately.values_list(*Sample.__slots__)[:SAMPLE]
    return pace_from([Sample(*row) for row in rows], owner_id)


def pace_from(samples: Sequence[Sample], owner_id: int) -> Pace | None:
    """Return the pace of these requests; None: there are none."""
    if not samples:
        return None
    own = [s for s in samples if (s.user_id, s.service_class) == (owner_id, BATCH)]
    alike = own if len(own) >= OWN_FROM else samples
    lengths = Lengths((s.completion_tokens, s.finish_reason in CUT) for s in alike)
    read = [float(s.read_tokens) for s in samples]
    written = [float(s.completion_tokens) for s in samples]
    held = [s.held_s for s in samples]
    streams = [s for s in samples if s.stream and s.ttft_ms is not None]
    if streams:
        prompt_s = sum(s.reading_s for s in streams) / sum(s.read_tokens for s in streams)
    else:
        prompt_s = _slope_of_reading(read, written, held)
    rest = [max(0.0, h - prompt_s * r) for h, r in zip(held, read, strict=True)]
    fixed_s, output_s = _line(written, rest)
    return Pace(fixed_s, prompt_s, output_s, lengths)


def _slope_of_reading(
    read: Sequence[float], written: Sequence[float], held: Sequence[float]
) -> float:
    """Return the seconds for each token read, by least squares beside those for each written."""
    reads = _moment(read, read)
    if reads < (SPREAD_OF_PROMPTS * fmean(read)) ** 2:
        return 0.0  # all prompts are alike, so their part is in the fixed one
    both, writes = _moment(read, written), _moment(written, written)
    apart = reads * writes - both * both
    if apart <= 1e-6 * reads * writes:
        return 0.0  # long prompts had long answers: which of them took the time nobody can say
    found = (_moment(read, held) * writes - _moment(written, held) * both) / apart
    return min(max(0.0, found), sum(held) / sum(read))


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return start and slope of the straight line through the points, neither below zero."""
    spread = _moment(x, x)
    through_zero = fmean(y) / max(1e-9, fmean(x))
    slope = max(0.0, _moment(x, y) / spread) if spread > 0 else through_zero
    start = fmean(y) - slope * fmean(x)
    return (start, slope) if start >= 0 else (0.0, through_zero)


def _moment(x: Sequence[float], y: Sequence[float]) -> float:
    mean_x, mean_y = fmean(x), fmean(y)
    return fmean((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
