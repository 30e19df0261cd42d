"""Ending requests from the portal: one's own, and for administrators anybody's."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from quotas.services import keys
from tests.portal.scripted_gateway import ScriptedGateway, live, queued, running

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


def busy_with(owner: str, key_id: str) -> Any:
    """Return a moment in which a person runs one request and an end user of theirs waits."""
    return live(
        running=(running(owner, "interactive", 27, key_id=key_id, ticket_id="req_mine"),),
        queued=(
            queued("77", "interactive", 1, 9, ticket_id="req_theirs"),
            queued(f"{owner}/student 4", "interactive", 2, 4, key_id=key_id, ticket_id="req_app"),
        ),
    )


def test_people_stop_their_own_and_nobody_elses(
    alice: Any, as_user: Any, gateway: ScriptedGateway
) -> None:
    """A running request and one of an own application's user are stopped, a stranger's never."""
    gateway.live = busy_with(str(alice.pk), "key_1")
    browser = as_user(alice)

    for request_id in ("req_mine", "req_app", "req_theirs", "req_nowhere"):
        answer = browser.post("/stop/", {"request": request_id})
        assert (answer.status_code, answer["Location"]) == (302, "/")

    assert gateway.stopped == [("req_mine", str(alice.pk)), ("req_app", str(alice.pk))]
    gateway.live = None
    page = browser.post("/stop/", {"request": "req_mine"}, follow=True).content.decode()
    assert "nothing was stopped" in page


def test_an_application_keys_requests_are_its_owners(
    alice: Any, as_user: Any, gateway: ScriptedGateway
) -> None:
    """My requests now lists those of my application's end users, with their name and a stop."""
    key = keys.issue(owner=alice, name="tutor bot", service_class="interactive").key
    gateway.live = busy_with(str(alice.pk), key.public_id)

    text = as_user(alice).get("/live/mine/").content.decode()

    assert "2 now" in text
    assert "for student 4" in text
    assert text.count('name="request"') == 2
    assert "req_theirs" not in text


def test_long_lists_of_own_requests_say_how_many_are_not_shown(
    alice: Any, as_user: Any, gateway: ScriptedGateway
) -> None:
    """Of sixty waiting requests fifty are shown, and the page says that ten more wait."""
    gateway.live = live(
        queued=tuple(
            queued(str(alice.pk), "batch", n, 5, ticket_id=f"req_{n}") for n in range(1, 61)
        )
    )

    text = as_user(alice).get("/live/mine/").content.decode()

    assert text.count('name="request"') == 50
    assert "10 more, in the order they start; 60 in all" in text


def test_administrators_stop_anybodys_and_it_is_logged(
    alice: Any, admin: Any, as_user: Any, gateway: ScriptedGateway
) -> None:
    """An administrator sees everybody by name and may stop any request; the log names both."""
    gateway.live = busy_with(str(alice.pk), "key_1")

    page = as_user(admin).get("/requests/").content.decode()
    with structlog.testing.capture_logs() as logged:
        as_user(admin).post("/requests/stop/", {"request": "req_theirs"})

    assert "alice" in page
    assert "former user 77" in page
    assert gateway.stopped == [("req_theirs", None)]
    assert [(one["event"], one["by"], one["stopped"]) for one in logged] == [
        ("request_stopped", admin.username, "req_theirs")
    ]
    assert as_user(alice).get("/requests/").status_code == 302
    assert as_user(alice).post("/requests/stop/", {"request": "req_theirs"}).status_code == 302
    assert len(gateway.stopped) == 1
