"""Which replica a conversation belongs to."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.core.affinity import load_bound, rendezvous, session_key

REPLICAS = ("a", "b", "c", "d", "e")
SESSIONS = [f"session-{number}" for number in range(4000)]


def chat(*contents: object) -> dict[str, object]:
    """Return a body whose first message is the system prompt, the others turns."""
    roles = ["system", "user", "assistant", "user"]
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


def test_all_turns_of_a_conversation_have_one_key() -> None:
    """
    A conversation without a name is known by its system prompt and its first question.
    """
    first = session_key("u", {}, chat("be kind", "hello"), "m")

    assert first
    assert first == session_key("u", {}, chat("be kind", "hello", "hi", "and now?"), "m")
    assert first != session_key("u", {}, chat("be kind", "other"), "m")
    assert first != session_key("u", {}, chat("be rude", "hello"), "m")
    assert first != session_key("u", {}, chat("be kind", "hello"), "other model")


def test_nobody_steers_another_users_requests() -> None:
    """
    The same session id of two people is two sessions, and no blank or border makes them one.
    """
    headers = {"x-session-id": "s"}

    assert session_key("u", headers, {}, "m") != session_key("v", headers, {}, "m")
    assert session_key("us", {"x-session-id": "x"}, {}, "m") != session_key(
        "u", {"x-session-id": "sx"}, {}, "m"
    )


def test_the_first_name_that_is_there_counts() -> None:
    """
    The header goes before prompt_cache_key, that before metadata, that before the opening.
    """
    body = chat("s", "q") | {"prompt_cache_key": "k", "metadata": {"session_id": "m"}}
    by_header = session_key("u", {"x-session-id": "h"}, body, "m")
    by_key = session_key("u", {}, body, "m")
    by_metadata = session_key("u", {}, body | {"prompt_cache_key": None}, "m")
    by_opening = session_key("u", {}, chat("s", "q"), "m")

    assert by_header == session_key("u", {"x-session-id": "h"}, {}, "m")
    assert by_key == session_key("u", {}, {"prompt_cache_key": "k"}, "m")
    assert len({by_header, by_key, by_metadata, by_opening}) == 4


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": []},
        {"messages": [None, 3, {"role": "assistant", "content": "x"}]},
        {"metadata": []},
        {"prompt_cache_key": 5},
        {"prompt": ["a", "b"]},
    ],
)
def test_a_body_without_a_conversation_has_no_session(body: dict[str, object]) -> None:
    """
    What has no name and no opening belongs nowhere, and odd shapes do not raise.
    """
    assert session_key("u", {}, body, "m") == ""


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"prompt": "tell"}, {"prompt": "tell"}),
        ({"input": "tell"}, {"input": "tell"}),
        (chat("s", "q"), chat([{"type": "text", "text": "s"}], [{"text": "q"}, {"image": 1}])),
        (chat("s", "q"), {"system": "s", "messages": [{"role": "user", "content": "q"}]}),
        (chat("s", "q" * 2000), chat("s", "q" * 2000 + "tail")),
        (chat("s", "\ud800"), chat("s", "\ud800")),
    ],
)
def test_shapes_that_say_the_same_are_one_session(one: dict, same: dict) -> None:
    """
    Text and parts, chat and messages, prompt and input: the opening is what counts.
    """
    assert session_key("u", {}, one, "m") == session_key("u", {}, same, "m") != ""


def test_sessions_spread_evenly() -> None:
    """
    Each of five replicas is home to a fifth of the sessions, within a tenth.
    """
    homes = Counter(rendezvous(s, REPLICAS)[0] for s in SESSIONS)

    assert all(abs(homes[name] - 800) < 80 for name in REPLICAS)


def test_removing_a_replica_moves_only_its_sessions() -> None:
    """
    The sessions of the others stay where their cache is, and nothing depends on the order given.
    """
    for session in SESSIONS[:1000]:
        order = rendezvous(session, REPLICAS)
        without = rendezvous(session, [name for name in reversed(REPLICAS) if name != "c"])
        assert without == tuple(name for name in order if name != "c")


def test_adding_a_replica_takes_a_fair_part_only() -> None:
    """
    A sixth replica becomes home to about a sixth; nobody moves between the old ones.
    """
    moved = 0
    for session in SESSIONS:
        before, after = rendezvous(session, REPLICAS)[0], rendezvous(session, (*REPLICAS, "f"))[0]
        moved += before != after
        assert after in (before, "f")
    assert abs(moved / len(SESSIONS) - 1 / 6) < 0.03


def test_weights_share_sessions_in_proportion() -> None:
    """
    A replica of weight 3 is home to three times as many sessions; weight 0 comes last.
    """
    weights = {"a": 3.0, "b": 1.0, "c": 0.0}
    orders = [rendezvous(s, weights, weights) for s in SESSIONS]
    homes = Counter(order[0] for order in orders)

    assert abs(homes["a"] / len(SESSIONS) - 0.75) < 0.03
    assert all(order[-1] == "c" for order in orders)


@pytest.mark.parametrize(
    ("total", "weight", "replicas", "bound"),
    [(0, 1, 3, 4), (15, 1, 2, 10), (16, 1, 2, 11), (31, 1, 4, 10), (5, 1, 0, 0)],
)
def test_the_load_bound_is_a_quarter_above_the_mean(total, weight, replicas, bound) -> None:
    """
    No replica is a hot spot: at most 1.25 times the mean, but never less than four.
    """
    assert load_bound(total, weight, replicas) == bound
