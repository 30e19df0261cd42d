"""The pictures of the ordering page, from the same rule as the drawing of the queue."""

from __future__ import annotations

from dataclasses import dataclass

from portal.status import drawing

LEVEL_Y, FAR_Y = 63.6, 262.0
MINUTES = 12.5  # what the slope picture spans
LEFT = 2.0


@dataclass(frozen=True, slots=True)
class Rising:
    """One chat message of the slope picture: arrives, rises, starts."""

    x1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Frame:
    """One of the three small pictures."""

    title: str
    batch_x: float
    chat_x: float
    chat: str
    batch_first: bool
    text: str


def x_at(minute: float) -> float:
    """Return where a minute after 14:00 lies."""
    return round(LEFT + (100 - LEFT - 2) * minute / MINUTES, 2)


def y_at(head_start_s: float, handicap_s: float) -> float:
    """Return the height of a head start; level is LEVEL_Y and smaller is higher."""
    return round(LEVEL_Y - (FAR_Y - LEVEL_Y) * head_start_s / handicap_s, 1)


def chats(handicap_s: float) -> tuple[Rising, ...]:
    """Return some chat messages: (minute of arrival, seconds until each starts)."""
    told = ((1, 36), (3, 30), (5, 72), (7.5, 48), (9.2, 72), (10.5, 60), (11.1, 42))
    return tuple(
        Rising(x_at(minute), x_at(minute + s / 60), y_at(s, handicap_s)) for minute, s in told
    )


def frames(handicap_s: float) -> tuple[Frame, ...]:
    """Return the moments in which one batch request is passed, is level, and overtakes."""
    told = (
        ("14:00:00", 0, "p", 9, "Request b, batch, arrives ten minutes out. Chat p has waited 9 s "
         "and goes first, as does every chat message after it."),
        ("14:09:59", 599, "q", 0, "b has waited 9 min 59 s. Chat q arrives this second: it is "
         "still ahead, by one second."),
        ("14:10:09", 609, "r", 0, "b has waited 10 min 9 s. Chat r arrives: b has overtaken and "
         "takes the next free slot."),
    )  # fmt: skip
    return tuple(
        Frame(
            title=title,
            batch_x=drawing.water_x(waited - handicap_s, handicap_s),
            chat_x=drawing.water_x(chat_s, handicap_s),
            chat=letter,
            batch_first=waited - handicap_s > chat_s,
            text=text,
        )
        for title, waited, letter, chat_s, text in told
    )
