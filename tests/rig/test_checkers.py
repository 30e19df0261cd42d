"""Each checker is silent on a good history and speaks up at a planted violation."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import httpx
import pytest

from tests.rig import checkers
from tests.rig.chat import Call
from tests.rig.checkers import UsageRow
from tests.rig.witness import Record, peak


def record(mark: str, start_s: float, end_s: float, **facts: object) -> Record:
    """Return what the engine saw of one request."""
    found = Record(1, mark, "/v1/chat/completions", [], "", start_s)
    found.ended_s, found.outcome, found.tokens = end_s, "done", 2
    for name, value in facts.items():
        setattr(found, name, value)
    return found


def answer(mark: str, says: str = "") -> Call:
    """Return a whole plain answer."""
    text = f"{says or mark} w1"
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    return Call(mark, 0.0, 200, body=body, ended_s=1.0)


def refusal(status: int, **headers: str) -> Call:
    """Return an error in the documented shape."""
    body = json.dumps({"error": {"message": "no", "code": "queue_full"}}).encode()
    return Call("a/1", 0.0, status, httpx.Headers(headers), body=body)


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 1), (1, 2)], 1),
        ([(0, 2), (1, 3)], 2),
        ([(0, 9), (1, 2), (3, 4), (3.5, 5)], 3),
    ],
)
def test_peak_counts_overlap(spans: list[tuple[float, float]], most: int) -> None:
    """A request that starts the instant another ends does not overlap it."""
    assert peak([record("a/1", *span) for span in spans]) == most


def test_a_request_without_an_end_still_counts() -> None:
    """What is running at the end of the log overlaps everything after its start."""
    assert peak([replace(record("a/1", 0, 0), ended_s=None), record("a/2", 5, 6)]) == 2


def test_a_hang_up_counts_until_the_engine_can_know_of_it() -> None:
    """An aborted request ends 20 ms before the engine wrote it down, and not sooner."""
    left = record("a/1", 0, 1, outcome="aborted")
    assert peak([left, record("a/2", 0.985, 2)]) == 1
    assert peak([left, record("a/2", 0.975, 2)]) == 2


def test_caps_held_sees_an_overlap() -> None:
    """One more at the engine than the cap allows is found, and only for its owner."""
    history = [record("a/1", 0, 2), record("a/2", 1, 3), record("b/1", 0, 9)]
    assert checkers.caps_held(history, {"a": 2, "b": 1}) == []
    assert len(checkers.caps_held(history, {"a": 1, "b": 1})) == 1


def test_slots_held_sees_a_queue_inside_the_engine() -> None:
    """More requests than slots is found."""
    history = [record("a/1", 0, 2), record("b/1", 1, 3)]
    assert checkers.slots_held(history, 2) == []
    assert checkers.slots_held(history, 1)


@pytest.mark.parametrize(
    "call",
    [
        Call("a/1", 0.0, 0, broke="ReadError"),
        replace(refusal(500)),
        Call("a/1", 0.0, 502, body=b"<html>"),
        refusal(429),
        Call("a/1", 0.0, 200, body=b'data: {"choices":[]}\n\n', broke="RemoteProtocolError"),
    ],
)
def test_all_ended_sees_a_bad_end(call: Call) -> None:
    """Broken connections, unknown statuses, foreign shapes and a missing Retry-After are found."""
    good = [answer("a/1"), refusal(429, **{"retry-after": "2"})]
    assert checkers.all_ended(good, may_break=False) == []
    assert checkers.all_ended([*good, call], may_break=False)


def test_bytes_true_sees_one_changed_byte() -> None:
    """A body that differs from what the engine sent is found."""
    call = answer("a/1")
    sent = record("a/1", 0, 1, sha256=hashlib.sha256(call.body).hexdigest())
    assert checkers.bytes_true([call], [sent]) == []
    assert checkers.bytes_true([replace(call, body=call.body + b" ")], [sent]) == []  # not whole
    queued_long = replace(call, body=b": waiting\n\n: waiting\n\n" + call.body)
    assert checkers.bytes_true([queued_long], [sent]) == []
    changed = replace(call, body=call.body.replace(b"w1", b"w2"))
    assert checkers.bytes_true([changed], [sent])


def test_nobody_elses_sees_a_swapped_answer() -> None:
    """An answer that carries another's mark is found."""
    assert checkers.nobody_elses([answer("a/1"), answer("b/1")]) == []
    assert checkers.nobody_elses([answer("a/1", says="b/1")])


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [UsageRow("r1", "a/1", "served", 3, 1, False)],
        [UsageRow("r1", "a/1", "served", 3, 2, False), UsageRow("r1", "a/1", "served", 3, 2, True)],
        [UsageRow("r1", "a/1", "aborted", 3, 3, True)],
    ],
)
def test_usage_true_sees_wrong_books(rows: list[UsageRow]) -> None:
    """A missing row, a wrong count, a doubled row and too many tokens are each found."""
    history = [record("a/1", 0, 1)]
    good = [UsageRow("r1", "a/1", "served", 3, 2, False)]
    assert checkers.usage_true(good, history) == []
    assert checkers.usage_true(rows, history)


@pytest.mark.parametrize(
    ("killed", "lost", "excused"),
    [([], [1.5], False), ([1.5], [], False), ([1.5], [4], True), ([0.5], [4], False),
     ([1.5], [99], False)],
)  # fmt: skip
def test_only_the_loss_of_both_copies_excuses(
    killed: list[float], lost: list[float], excused: bool
) -> None:
    """A missing row is excused when the gateway and Redis went while it was on its way."""
    assert checkers.copies_lost(record("a/1", 1, 2), killed, lost) is excused


def test_a_try_that_the_engine_refused_made_nothing() -> None:
    """A request that was refused once and then served is held to what the second try made."""
    tries = [record("a/1", 0, 1, tokens=0), record("a/1", 2, 3, tokens=5)]
    assert checkers.usage_true([UsageRow("r1", "a/1", "served", 3, 5, False)], tries) == []
    assert checkers.usage_true([UsageRow("r1", "a/1", "served", 3, 4, False)], tries)


def test_usage_of_a_killed_engine_is_not_known() -> None:
    """What an engine had made when it was killed cannot be held against the books."""
    unknown = replace(record("a/1", 0, 1), ended_s=None, tokens=0)
    assert checkers.usage_true([UsageRow("r1", "a/1", "failed", 3, 5, True)], [unknown]) == []


def test_order_kept_sees_a_later_rank_first() -> None:
    """A larger rank that starts before a smaller one is found."""
    history = [record("a/1", 0, 1), record("b/1", 1, 2)]
    assert checkers.order_kept(history, {"a/1": 1, "b/1": 2}) == []
    assert checkers.order_kept(history, {"a/1": 2, "b/1": 1})


def test_refused_after_sees_a_late_start() -> None:
    """A start more than five seconds after revocation is found, another key's is not."""
    history = [record("a/1", 4.9, 9), record("b/1", 99, 100)]
    assert checkers.refused_after(history, "a", 0.0) == []
    assert checkers.refused_after([record("a/1", 5.1, 9)], "a", 0.0)


@pytest.mark.parametrize(
    ("output", "errors"), [(["1"], []), (["1", "2"], ["2"]), (["1", "2", "3"], [])]
)
def test_lines_once_sees_lost_doubled_and_foreign_lines(
    output: list[str], errors: list[str]
) -> None:
    """A line that is lost, there twice, or was never sent is found."""
    assert checkers.lines_once(["1", "2"], ["2"], ["1"]) == []
    assert checkers.lines_once(["1", "2"], output, errors)


def test_secret_free_sees_the_tail_of_a_secret() -> None:
    """The hidden part of a secret is found wherever it stands; the shown four characters may be."""
    secret = "fw_int_0123456789abcdefghijklmnopqrstuvwxyz"
    assert checkers.secret_free(secret, {"log": "fw_int_012…wxyz"}) == []
    assert checkers.secret_free(secret, {"log": f"key={secret}"})


def test_no_traces_sees_one_of_ours() -> None:
    """A stack trace of a program of ours is found; the worker's library may print its own."""
    trace = "| Traceback (most recent call last):"
    assert checkers.no_traces(f"worker   {trace}\ngateway  | all is well") == []
    assert checkers.no_traces(f"gateway-2{trace}") == ["a stack trace of gateway-2"]
