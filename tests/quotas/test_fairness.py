"""How evenly a pool was shared, from the usage rows."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command

from quotas.fairness import Request, jain, own_place, report, who_waited_for_whom
from quotas.models import User
from quotas.services import usage
from quotas.usage_rows import parse
from tests.quotas.helpers import record

ALICE, BOB, CAROL = 1, 2, 3
NAMES = {ALICE: "alice", BOB: "bob", CAROL: "carol"}


def asked(
    user: int, arrived: float, started: float | None, ended: float, kind: str = "interactive",
    tokens: int = 10, pool: str = "m",
) -> Request:  # fmt: skip
    """Return one request."""
    return Request(user, kind, pool, arrived, started, ended, tokens)


@pytest.mark.parametrize(
    ("shares", "index"),
    [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([3, 1], 0.8), ([], None), ([0, 0], None)],
)
def test_jains_index(shares: list[float], index: float | None) -> None:
    """
    All alike is 1, one of four with everything is 1/4, nobody with anything is unknown.
    """
    assert jain(shares) == (None if index is None else pytest.approx(index))


def test_waiting_is_laid_on_those_who_hold_slots_in_proportion() -> None:
    """
    While Bob holds three slots and Alice one, three quarters of Carol's wait are behind Bob.
    """
    requests = [asked(BOB, 0, 0, 10) for _ in range(3)]
    requests += [asked(ALICE, 0, 0, 10), asked(CAROL, 2, 10, 12)]

    assert who_waited_for_whom(requests) == {
        (CAROL, "interactive", BOB): pytest.approx(6),
        (CAROL, "interactive", ALICE): pytest.approx(2),
    }


def test_waiting_for_oneself_is_laid_on_oneself() -> None:
    """
    Who fills the card and queues more waits behind nobody else.
    """
    requests = [asked(ALICE, 0, 0, 10), asked(ALICE, 0, 10, 20)]

    assert who_waited_for_whom(requests) == {(ALICE, "interactive", ALICE): pytest.approx(10)}


def test_pools_do_not_mix() -> None:
    """
    Nobody waits behind somebody who uses another model.
    """
    requests = [asked(BOB, 0, 0, 10, pool="other"), asked(ALICE, 0, 10, 12)]

    assert who_waited_for_whom(requests) == {}


def test_a_request_that_never_ran_has_waited_to_its_end() -> None:
    """
    An evicted request holds no slot; its whole life was waiting.
    """
    found = report([asked(BOB, 0, 0, 60), asked(ALICE, 0, None, 60)], NAMES)
    alice = next(part for part in found.parts if part.user_id == ALICE)

    assert (alice.never_ran, alice.slot_share, alice.wait_p95_s) == (1, 0.0, 60)
    assert found.behind[0].seconds == pytest.approx(60)


def test_shares_add_up_and_classes_have_their_own_index() -> None:
    """
    All shares make one; batch and interactive are judged apart.
    """
    requests = [
        asked(ALICE, 0, 0, 10, tokens=30), asked(BOB, 0, 0, 10, tokens=10),
        asked(CAROL, 0, 0, 20, "batch", tokens=60),
    ]  # fmt: skip
    found = report(requests, NAMES)

    assert sum(part.slot_share for part in found.parts) == pytest.approx(1)
    assert found.parts[0].name == "carol"
    assert found.jain_slots == {"batch": 1.0, "interactive": 1.0}
    assert found.jain_tokens["interactive"] == pytest.approx(0.8)


def test_a_person_sees_themselves_against_the_median() -> None:
    """
    One's own wait and share stand beside the middle of all; who asked nothing sees nothing.
    """
    requests = [asked(ALICE, 0, 9, 10), asked(BOB, 0, 1, 10), asked(CAROL, 0, 2, 10)]
    found = report(requests, NAMES)
    mine = own_place(found, ALICE, "interactive")

    assert mine is not None
    assert (mine.wait_p95_s, mine.median_wait_p95_s, mine.people) == (9, 2, 3)
    assert own_place(found, ALICE, "batch") is None


@pytest.mark.django_db
def test_the_command_reads_the_books(alice: User) -> None:
    """
    The report of the command is that of the rows, and says when it was cut.
    """
    rows = [parse(record(n, user_id=str(alice.pk), queue_wait_ms=1000).to_json()) for n in (1, 2)]
    usage.write(parsed=rows, before=usage.position(), after=usage.Position("e"))

    out = io.StringIO()
    call_command("fairness", "--days", "400", "--json", stdout=out)
    found = json.loads(out.getvalue())

    assert (found["requests"], found["cut"]) == (2, False)
    assert found["parts"][0]["name"] == "alice"
    call_command("fairness", "--days", "400", stdout=io.StringIO())
