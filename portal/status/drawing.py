"""Turns the scheduler's snapshot into positions in per cent; the templates only print them.

Rule 1: order and places come from the snapshot; nothing here sorts the waiting line again.
Rule 2: lengths and positions are per cent of the width, so a drawing fits any screen.
Rule 3: no clock, no settings, no HTML: numbers in, frozen dataclasses out.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# The water: batch enters at FAR, chat at LEVEL, the gate is at 100.
FAR, LEVEL, NEAREST = 6.0, 58.0, 94.0
NEAREST_S = 60  # a head start of a minute or more lies at NEAREST
LANE_FULL_S = 120  # a lane is full after two minutes
CHAT_ROW_PCT = 9.0  # chat marks closer than this alternate two rows
MERGE_PCT = 12.0  # a crowd's marks within this become one with xn
HANDFUL = 5  # more marks than this in one class are a crowd


def water_x(head_start_s: float, handicap_s: float) -> float:
    """Return where a waiting request lies, by its head start against a chat sent now."""
    if head_start_s <= 0:
        out = max(head_start_s, -handicap_s)
        return round(FAR + (LEVEL - FAR) * (out + handicap_s) / handicap_s, 2)
    near = math.sqrt(min(head_start_s, NEAREST_S) / NEAREST_S)
    return round(LEVEL + (NEAREST - LEVEL) * near, 2)


def lane_width(running_s: float) -> float:
    """Return the length of a running request in its lane; early seconds show most."""
    return round(100 * math.sqrt(min(max(running_s, 0), LANE_FULL_S) / LANE_FULL_S), 2)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting request, as a drawing needs it."""

    service_class: str
    letter: str
    head_start_s: float
    queued_s: float
    yours: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark on the water; `count` over 1 stands for several requests."""

    service_class: str
    letter: str
    x: float
    row: int
    queued_s: float
    yours: bool
    count: int = 1


def marks(waiting: Sequence[Waiting], handicap_s: float) -> tuple[Mark, ...]:
    """Place the waiting line on the water; crowds become one mark with their number."""
    placed: list[Mark] = []
    for service_class in ("interactive", "batch"):
        own = [
            Mark(w.service_class, w.letter, water_x(w.head_start_s, handicap_s), 0, w.queued_s,
                 w.yours)
            for w in waiting
            if w.service_class == service_class
        ]  # fmt: skip
        own.sort(key=lambda mark: mark.x)
        if len(own) > HANDFUL:
            own = _merged(own)
        placed += _in_rows(own) if service_class == "interactive" else own
    return tuple(placed)


def _merged(crowd: list[Mark]) -> list[Mark]:
    """Join marks that lie within MERGE_PCT of the first of their heap; yours stay visible."""
    heaps: list[Mark] = []
    for mark in crowd:
        last = heaps[-1] if heaps else None
        if last and mark.x - last.x <= MERGE_PCT and mark.yours == last.yours:
            heaps[-1] = replace(last, count=last.count + 1, queued_s=mark.queued_s, letter="")
        else:
            heaps.append(mark)
    return heaps


def _in_rows(chat: list[Mark]) -> list[Mark]:
    """Alternate two rows where marks would touch."""
    rows: list[Mark] = []
    for mark in chat:
        before = rows[-1] if rows else None
        near = before is not None and mark.x - before.x < CHAT_ROW_PCT
        rows.append(replace(mark, row=1 - before.row if near and before else 0))
    return rows


def letters(user_ids: Iterable[str], secret: str, hour: int) -> dict[str, str]:
    """Give each person a letter for this hour; next hour the letters are shuffled.

    A letter follows from the person and the hour, so it stays while others come and go,
    but for the rare clash, which takes the next free one.
    """
    taken: dict[str, str] = {}
    free = set(string.ascii_uppercase)
    for number, user_id in sorted(
        (hmac.digest(secret.encode(), f"{hour}:{user_id}".encode(), hashlib.sha256), user_id)
        for user_id in set(user_ids)
    ):
        if not free:
            taken[user_id] = "…"
            continue
        start = number[0] % 26
        order = string.ascii_uppercase[start:] + string.ascii_uppercase[:start]
        letter = next(one for one in order if one in free)
        free.discard(letter)
        taken[user_id] = letter
    return taken


# The small strip of the card line, in pixels: it never changes its size.
STRIP_GATE, STRIP_NEAREST, STRIP_PITCH, STRIP_SHOWN = 70.0, 58.5, 9.0, 5
STRIP_LANES, STRIP_LANE_PITCH, STRIP_WIDTH, STRIP_MOST_LANES = 76.0, 9.4, 75.2, 24


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot: held by a class, free, or unknown."""

    holder: str  # interactive, batch, free, unknown
    yours: bool = False


@dataclass(frozen=True, slots=True)
class StripMark:
    """One waiting request on the strip; x is its middle."""

    service_class: str
    x: float
    yours: bool


@dataclass(frozen=True, slots=True)
class StripLane:
    """One slot on the strip; x is its left edge."""

    holder: str
    x: float
    width: float
    yours: bool


@dataclass(frozen=True, slots=True)
class Strip:
    """The whole small drawing."""

    marks: tuple[StripMark, ...]
    more: int  # waiting requests that found no room
    lanes: tuple[StripLane, ...]


def strip(waiting: Sequence[Waiting], slots: Sequence[Slot]) -> Strip:
    """Draw the nearest five waiting requests before the gate and the slots behind it."""
    shown = tuple(
        StripMark(w.service_class, STRIP_NEAREST - STRIP_PITCH * place, w.yours)
        for place, w in enumerate(waiting[:STRIP_SHOWN])
    )
    drawn = slots[:STRIP_MOST_LANES]
    pitch = min(STRIP_LANE_PITCH, STRIP_WIDTH / max(len(drawn), 1))
    width = round(pitch * 0.745, 2)
    lanes = tuple(
        StripLane(slot.holder, round(STRIP_LANES + pitch * place, 2), width, slot.yours)
        for place, slot in enumerate(drawn)
    )
    return Strip(shown, max(len(waiting) - STRIP_SHOWN, 0), lanes)
