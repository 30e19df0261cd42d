"""The positions of the fairway drawing."""

from __future__ import annotations

import pytest

from portal.status import drawing
from portal.status.drawing import Slot, Waiting


@pytest.mark.parametrize(
    ("head_start_s", "x"),
    [
        (-900, 6.0),  # outside the accrual window: no further out than batch enters
        (-600, 6.0),
        (-560, 9.47),
        (-300, 32.0),
        (-40, 54.53),
        (0, 58.0),
        (1, 62.65),
        (5, 68.39),
        (9, 71.94),
        (15, 76.0),
        (45, 89.18),
        (60, 94.0),
        (3600, 94.0),
    ],
)
def test_a_waiting_request_lies_by_its_head_start(head_start_s: float, x: float) -> None:
    """
    Batch enters at 6 %, chat at level 58 %, and a minute's head start lies before the gate.
    """
    assert drawing.water_x(head_start_s, 600) == x


def test_nobody_overtakes_by_being_drawn() -> None:
    """
    A larger head start is never drawn further from the gate than a smaller one.
    """
    places = [drawing.water_x(p / 10, 600) for p in range(-7000, 700)]

    assert places == sorted(places)


@pytest.mark.parametrize(
    ("running_s", "width"), [(-1, 0), (0, 0), (41, 58.45), (120, 100), (900, 100)]
)
def test_a_lane_fills_in_two_minutes(running_s: float, width: float) -> None:
    """
    A lane's bar grows with the root of the time and is full at two minutes.
    """
    assert drawing.lane_width(running_s) == width


def chat(*head_starts: float, yours: bool = False) -> list[Waiting]:
    return [Waiting("interactive", "A", p, p, yours) for p in head_starts]


def test_close_chat_marks_alternate_two_rows() -> None:
    """
    Chat marks closer than 9 % stand in alternating rows, so that none hides another.
    """
    rows = [mark.row for mark in drawing.marks(chat(1, 4, 9, 60), 600)]

    assert rows == [0, 1, 0, 0]


def test_a_handful_is_drawn_one_by_one() -> None:
    """
    Five requests of a class keep their own marks, however close they are.
    """
    assert [mark.count for mark in drawing.marks(chat(1, 1, 1, 1, 1), 600)] == [1] * 5


def test_a_crowd_becomes_one_mark_with_its_number() -> None:
    """
    More than a handful within 12 % become one mark that says how many it stands for.
    """
    crowd = drawing.marks(chat(1, 1.1, 1.2, 1.3, 1.4, 1.5, 60), 600)

    assert [(mark.count, mark.letter) for mark in crowd] == [(6, ""), (1, "A")]


def test_your_mark_is_never_swallowed_by_a_crowd() -> None:
    """
    The reader's own requests keep a mark of their own in a crowd.
    """
    crowd = [*chat(1, 1.1, 1.2), *chat(1.3, yours=True), *chat(1.4, 1.5)]

    assert [(mark.count, mark.yours) for mark in drawing.marks(crowd, 600)] == [
        (3, False),
        (1, True),
        (2, False),
    ]


def test_no_waiting_request_is_lost_in_a_drawing() -> None:
    """
    The marks' numbers add up to the waiting line, crowds included.
    """
    line = [*chat(*range(40)), *(Waiting("batch", "B", p, 0) for p in range(-600, 60, 7))]

    assert sum(mark.count for mark in drawing.marks(line, 600)) == len(line)


def test_letters_stay_for_an_hour_and_then_change() -> None:
    """
    A person keeps their letter while others come and go, and gets another next hour.
    """
    people = [f"user{n}" for n in range(8)]
    first = drawing.letters(people, "secret", 1)

    assert len(set(first.values())) == len(people)
    assert drawing.letters(people, "secret", 1) == first
    assert drawing.letters(people, "secret", 2) != first


def test_more_people_than_letters_are_still_drawn() -> None:
    """
    The twenty-seventh person has no letter of their own but is not left out.
    """
    letters = drawing.letters([str(n) for n in range(30)], "secret", 1)

    assert len(letters) == 30
    assert list(letters.values()).count("…") == 4


def test_the_strip_shows_the_nearest_five_and_counts_the_rest() -> None:
    """
    The small strip shows five waiting requests, the next one at the gate, and +n for the rest.
    """
    strip = drawing.strip(chat(9, 8, 7, 6, 5, 4, 3), [Slot("interactive"), Slot("free")])

    assert [mark.x for mark in strip.marks] == [58.5, 49.5, 40.5, 31.5, 22.5]
    assert strip.more == 2
    assert [(lane.holder, lane.x) for lane in strip.lanes] == [
        ("interactive", 76.0),
        ("free", 85.4),
    ]


def test_many_slots_still_fit_into_the_strip() -> None:
    """
    Slots narrow so that two dozen end inside the strip's 152 pixels.
    """
    lanes = drawing.strip([], [Slot("free")] * 40).lanes

    assert len(lanes) == 24
    assert lanes[-1].x + lanes[-1].width <= 152
