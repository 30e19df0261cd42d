"""Says when waiting is a question of hardware, and shows its arithmetic.

A dated record for administrators, never a flag and never from one sample: saturated on three of
the last seven days, or overloaded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.types import Blocker

DAYS = 7
SATURATED_DAYS = 3
ROOM = 0.7  # plan for 70 % of the best sustained rate
KV_IS_FREE = 0.7


@dataclass(frozen=True, slots=True)
class Day:
    """What one day of one pool looked like; None is unknown."""

    date: str  # ISO 8601
    saturated: bool = False
    overloaded: bool = False
    waited_s: Mapping[Blocker, float] = field(default_factory=dict)  # interactive, by blocker
    kv_usage: float | None = None  # the highest hour's mean
    preemptions: int | None = None
    offered_tokens_per_s: float | None = None  # asked for in the busiest hour, served or not


@dataclass(frozen=True, slots=True)
class Decision:
    """What the week's waiting was for and what would end it."""

    blocker: Blocker
    action: str
    reason: str  # which days, in words
    arithmetic: str
    replicas_needed: int | None  # None: not a question of replicas, or unknown


def decide(
    days: Sequence[Day], *, replicas: int, replica_tokens_per_s: float | None
) -> Decision | None:
    """Return the decision that the last seven days ask for, or None when they ask for none.

    `replica_tokens_per_s` is the best sustained rate of one replica, as measured; None: never
    measured.
    """
    week = sorted(days, key=lambda day: day.date)[-DAYS:]
    saturated = [day.date for day in week if day.saturated or day.overloaded]
    overloaded = [day.date for day in week if day.overloaded]
    if len(saturated) < SATURATED_DAYS and not overloaded:
        return None
    waited = _summed(week)
    if not waited:
        return None
    blocker = max(waited, key=lambda b: (waited[b], b))
    share = waited[blocker] / sum(waited.values())
    reason = _reason(saturated, overloaded)
    shares = f"{share:.0%} of {sum(waited.values()) / 3600:.1f} hours waited was for {blocker}."
    action, needed, sums = _action(blocker, week, replicas, replica_tokens_per_s)
    return Decision(blocker, action, reason, " ".join(filter(None, (shares, sums))), needed)


def _summed(week: Sequence[Day]) -> dict[Blocker, float]:
    waited: dict[Blocker, float] = {}
    for day in week:
        for blocker, seconds in day.waited_s.items():
            if seconds > 0:
                waited[blocker] = waited.get(blocker, 0.0) + seconds
    return waited


def _reason(saturated: Sequence[str], overloaded: Sequence[str]) -> str:
    if overloaded:
        return f"Overloaded on {', '.join(overloaded)}."
    return f"Saturated on {len(saturated)} of the last {DAYS} days: {', '.join(saturated)}."


def _action(
    blocker: Blocker, week: Sequence[Day], replicas: int, rate: float | None
) -> tuple[str, int | None, str]:
    """Return what to do, how many replicas that means, and the sums behind it."""
    cache = _most(day.kv_usage for day in week)
    preempted = sum(day.preemptions or 0 for day in week)
    if blocker is Blocker.OWN_CAP:
        return (
            "Not hardware: raise the caps of those who wait, or leave them as they are.",
            None,
            "",
        )
    if blocker is Blocker.BATCH_POOL:
        return "Not hardware: batch waits for batch; raise batch slots if nobody minds.", None, ""
    if blocker is Blocker.RESERVED:
        return "Not hardware: slots were reserved for a group; reserve fewer or later.", None, ""
    if blocker is Blocker.NO_REPLICA:
        return "Keep the engines up: people waited because none was.", None, ""
    if blocker is Blocker.KV or preempted:
        sums = f"{preempted} preemptions in the week."
        action = "Shorter context, a smaller cache type, or a card with more memory."
        return action, None, sums
    if blocker is Blocker.PREFILL:
        action = "Long prompts are the load: prefix cache, smaller chunks, or a second replica."
        return action, replicas + 1, ""
    if cache is not None and cache < KV_IS_FREE:
        sums = f"The cache was {cache:.0%} full at most, below {KV_IS_FREE:.0%}."
        return "Raise the slots (vLLM: --max-num-seqs, llama.cpp: -np): memory is free.", None, sums
    return _more_replicas(week, replicas, rate)


def _more_replicas(
    week: Sequence[Day], replicas: int, rate: float | None
) -> tuple[str, int | None, str]:
    offered = _most(day.offered_tokens_per_s for day in week)
    if offered is None or not rate:
        missing = "measure the engine's capacity first" if not rate else "the demand is unknown"
        return "Another replica, or less demand.", None, f"How many replicas: {missing}."
    needed = math.ceil(offered / (ROOM * rate))
    sums = (
        f"{offered:,.0f} tokens/s asked for in the busiest hour / ({ROOM} x {rate:,.0f} tokens/s "
        f"measured per replica) = {needed} replicas; there are {replicas}."
    )
    if needed <= replicas:
        return "The replicas suffice on average: spread the demand over the day.", needed, sums
    return f"Add {needed - replicas} replica(s), or cap the demand.", needed, sums


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
