"""What the pages say of a moment."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from portal.status import reading, sentences, shapes
from portal.status.source import Heard
from portal.status.views import status_json
from quotas.snapshots.live import Live
from tests.portal.scripted_gateway import busy, engine, live, queued, running, unknown

POOL = "Qwen2.5-14B"


def read(moment: Live | None, reader_id: str = "", last_at: float | None = None) -> shapes.Reading:
    heard = Heard(time.time(), moment, moment.at if moment else last_at)
    return reading.read(heard, reader_id=reader_id, secret="secret")


def test_a_silent_gateway_leaves_no_number() -> None:
    """
    Without an answer nothing is shown as current: no engines, no queue, only since when.
    """
    card = read(None, last_at=1_700_000_000.0)

    assert (card.state, card.at, card.pools, card.engines, card.strip) == (
        "unknown",
        None,
        (),
        (),
        None,
    )
    assert card.last_at is not None


def test_a_silent_engine_has_unknown_slots_but_a_current_queue() -> None:
    """
    Slots of an engine not heard lately are unknown, while the waiting line is still true.
    """
    card = read(unknown())
    pool = card.pools[0]

    assert (card.state, pool.slots) == ("unknown", None)
    assert {lane.holder for lane in pool.lanes} == {"unknown"}
    assert pool.waiting == {"interactive": 3, "batch": 5}
    assert card.engines[0].running is None


def test_an_unknown_queue_is_not_an_empty_one() -> None:
    """
    While the scheduler's store is away nobody's slots and places are told, engines' own numbers
    are, and programs read null with the time since when.
    """
    silent_at = time.time() - 75
    moment = dataclasses.replace(
        live(), open=False, queue_known=False, queue_at=silent_at, expected_wait_s={}
    )
    heard = Heard(time.time(), None, silent_at, partial=moment)
    card = reading.read(heard, reader_id="", secret="secret")
    found = status_json(card)
    model = found["models"][0]

    assert (card.state, card.pools[0].slots, card.engines[0].running) == ("unknown", None, None)
    assert {lane.holder for lane in card.pools[0].lanes} == {"unknown"}
    assert {model[name] for name in ("running", "held", "waiting", "oldest_wait_s")} == {None}
    assert model["unknown_since"] == reading.moment(silent_at).isoformat()
    assert found["engines"][0]["engine_running"] == 0
    assert found["engines"][0]["held_batch"] is None


@pytest.mark.parametrize(("age_s", "reports"), [(20, True), (30, False)])
def test_a_worker_that_does_not_report_is_named(age_s: float, reports: bool) -> None:
    """
    The worker reports every ten seconds; after 25 s of silence it is said since when.
    """
    found = status_json(read(live(worker_at=time.time() - age_s)))

    assert found["worker"]["reports"] is reports
    assert (found["worker"]["unknown_since"] is None) is reports


@pytest.mark.parametrize(
    ("ratio", "x"), [(0.0, 0.0), (0.25, 25.0), (1.125, 37.5), (4.0, 75.0), (20.0, 100.0)]
)
def test_each_state_takes_a_quarter_of_the_scale(ratio: float, x: float) -> None:
    """
    The mark of the verdict stands where its state begins and ends on the scale.
    """
    assert shapes.Verdict("ok", None, "", ratio).scale_x == x


@pytest.mark.parametrize(("age_s", "current"), [(14, True), (16, False)])
def test_an_engine_is_current_for_fifteen_seconds(age_s: float, current: bool) -> None:
    """
    Numbers of an engine heard up to 15 s ago are current, older ones are not.
    """
    now = time.time()

    assert reading.is_current(engine(seen_at=now - age_s), now) is current


@pytest.mark.parametrize(
    ("blocker", "state"),
    [("slots", "busy"), ("prefill", "busy"), ("kv", "busy"), ("own_cap", "ok")],
)
def test_own_caps_are_nobodys_overload(blocker: str, state: str) -> None:
    """
    Only those who wait for the card make it busy; who waits for their own cap does not.
    """
    moment = live(
        running=tuple(running("a", "interactive", s) for s in (1, 2, 3, 4)),
        queued=(queued("b", "interactive", 1, 3, blocker=blocker),),
    )

    assert read(moment).state == state


def test_all_engines_down_is_down_and_not_unknown() -> None:
    """
    An engine that refuses is known to be down; the line says what happens to requests.
    """
    card = read(live(engines=(engine(state="down"),)))

    assert card.state == "down"
    assert "keep their place" in card.sentence


def test_a_measured_card_says_so_and_not_that_it_is_silent() -> None:
    """
    While every engine of a model is measured the page says why nobody is served.
    """
    card = read(live(engines=(engine(state="measuring"),)))

    assert "capacity is being measured" in card.sentence
    assert "Slots kept free" in sentences.strip_text(card.pools[0])
    one_of_two = read(live(engines=(engine(state="measuring"), engine(name="other"))))
    assert "measured" not in one_of_two.sentence


def test_no_engine_says_what_is_missing() -> None:
    """
    An installation without engines says so instead of showing an idle card.
    """
    card = read(live(engines=()))

    assert (card.state, card.sentence) == ("unknown", "No engine is registered yet.")


def test_a_closed_ledger_is_said() -> None:
    """
    While the gateway counts again after a loss, the line says that starts pause.
    """
    assert "pause" in read(live(open=False)).sentence


def test_the_sentence_holds_both_waits() -> None:
    """
    The card line says when a new message of each class would start.
    """
    sentence = read(busy()).sentence

    assert "chat message starts in about 9 s" in sentence
    assert "batch request in about 10 min" in sentence


def test_yours_are_marked_for_you_alone() -> None:
    """
    A reader sees which slots and places are theirs; everybody else sees letters.
    """
    mine, public = read(busy("7"), "7").pools[0], read(busy("7")).pools[0]

    assert [lane.number for lane in mine.lanes if lane.yours] == [2]
    assert [place.position for place in mine.places if place.yours] == [3, 6, 7]
    assert not any(lane.yours for lane in public.lanes)
    assert not any(place.yours for place in public.places)


def test_the_order_is_the_schedulers() -> None:
    """
    The table lists the waiting line as the ledger gave it, never sorted again.
    """
    line = tuple(queued(u, "interactive", n + 1, n) for n, u in enumerate("cab"))

    assert [p.queued_s for p in read(live(queued=line)).pools[0].places] == [0, 1, 2]


def test_a_heavy_request_holds_as_many_lanes() -> None:
    """
    A request of weight three is drawn in three slots.
    """
    moment = live(running=(running("a", "interactive", 5, weight=3),))
    lanes = read(moment).pools[0].lanes

    assert [lane.holder for lane in lanes].count("interactive") == 3
    assert len(lanes) == 8


def test_a_long_line_says_that_it_is_cut() -> None:
    """
    Of a hundred waiting requests fifty are listed, and the rest is counted.
    """
    line = tuple(queued("a", "interactive", n + 1, 100 - n) for n in range(100))
    pool = read(live(queued=line)).pools[0]

    assert (len(pool.places), pool.places_more, pool.waiting_all) == (50, 50, 100)


def test_unknown_fields_of_a_newer_gateway_are_left_alone() -> None:
    """
    A gateway one version ahead may add fields; the portal reads the ones it knows.
    """
    from portal.status import source

    raw: dict[str, Any] = dataclasses.asdict(busy()) | {"new": 1}
    raw["engines"][0]["new"] = 1

    assert source.decode(raw) == dataclasses.replace(busy(), at=raw["at"], engines=tuple(
        dataclasses.replace(e, seen_at=r["seen_at"])
        for e, r in zip(busy().engines, raw["engines"], strict=True)
    ))  # fmt: skip
