"""Pages, who may see them, and what the browser is told."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from portal.status import source
from quotas.services import keys
from tests.portal.scripted_gateway import ScriptedGateway, busy, live, queued, running

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]

PUBLIC = ["/status/", "/status.json", "/accounts/login/", "/accounts/password/reset/"]
PRIVATE = ["/", "/keys/"]


@pytest.mark.parametrize("address", PUBLIC)
@pytest.mark.usefixtures("gateway")
def test_public_pages_need_no_account(client: Client, address: str) -> None:
    """
    Status, its JSON and the sign-in pages open for everybody.
    """
    assert client.get(address).status_code == 200


@pytest.mark.parametrize("address", PRIVATE)
@pytest.mark.usefixtures("gateway")
def test_private_pages_lead_to_sign_in(
    client: Client, alice: Any, as_user: Any, address: str
) -> None:
    """
    Other pages send a stranger to sign-in and come back afterwards.
    """
    answer = client.get(address)

    assert (answer.status_code, answer["Location"]) == (302, f"/accounts/login/?next={address}")
    assert as_user(alice).get(address).status_code == 200


@pytest.mark.usefixtures("gateway")
def test_every_page_carries_the_strict_policy(client: Client) -> None:
    """
    Scripts, styles and connections come from this host alone, and nobody frames us.
    """
    answer = client.get("/status/")
    policy = answer["Content-Security-Policy"]

    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy.split("; ")  # their order is not fixed
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Referrer-Policy"] == "same-origin"
    assert "camera=()" in answer["Permissions-Policy"]


def test_only_the_admin_may_evaluate(admin: Any, as_user: Any) -> None:
    """
    The admin's theme needs 'unsafe-eval'; no other address gets it.
    """
    policy = as_user(admin).get("/admin/")["Content-Security-Policy"]

    assert "'unsafe-eval'" in policy
    assert "default-src 'none'" in policy


@pytest.mark.usefixtures("gateway")
def test_the_request_id_stands_on_the_answer_and_the_error_page(client: Client) -> None:
    """
    An error page shows the id the gateway gave, and the log carries the same one.
    """
    answer = client.get("/nowhere/", headers={"x-request-id": "req_7Kq2mX"})

    assert answer.status_code == 404
    assert answer["x-request-id"] == "req_7Kq2mX"
    assert "req_7Kq2mX" in answer.content.decode()


@pytest.mark.parametrize("address", ["/v1/nowhere", "/api/v1/nowhere"])
def test_programs_get_errors_as_json(client: Client, address: str) -> None:
    """
    Under /v1 and /api an unknown address is JSON, never a page.
    """
    answer = client.get(address)

    assert answer.status_code == 404
    assert "not_found" in str(answer.json())


@pytest.mark.usefixtures("no_gateway")
def test_a_dead_gateway_is_unknown_on_every_page(client: Client, alice: Any, as_user: Any) -> None:
    """
    Without a gateway pages still open and say unknown instead of old numbers.
    """
    page = client.get("/status/").content.decode()

    assert "Unknown. The gateway does not answer." in page
    assert client.get("/status.json").json()["models"] == []
    assert as_user(alice).get("/keys/").status_code == 200


def test_old_numbers_are_never_shown_as_current(client: Client, gateway: ScriptedGateway) -> None:
    """
    When the gateway falls silent the page says since when and drops what it said before.
    """
    gateway.live = busy()
    assert "8 of 8 slots held" in client.get("/status/").content.decode()

    gateway.live = None
    page = client.get("/status/").content.decode()

    assert "slots held" not in page
    assert re.search(r"Unknown since \d\d:\d\d", page)


def test_pages_share_one_question_a_second(
    client: Client, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Ten pages in a second ask the gateway once.
    """
    monkeypatch.setattr(source, "FRESH_S", 60.0)

    for _ in range(10):
        client.get("/status/")

    assert gateway.asked == 1


def test_names_and_numbers_of_people_stay_off_the_public_page(
    client: Client, gateway: ScriptedGateway, alice: Any
) -> None:
    """
    The public page and its JSON hold no user id, user name, key id or request id.
    """
    gateway.live = busy(f"user-{alice.pk}")
    shown = client.get("/status/").content.decode() + client.get("/status.json").content.decode()

    for secret in ("alice", f"user-{alice.pk}", "key_", "req_user", "run_user"):
        assert secret not in shown


def test_an_unchanged_live_part_costs_no_bytes(client: Client, gateway: ScriptedGateway) -> None:
    """
    A part that did not change is answered 304 to the tag it was given.
    """
    gateway.live = None
    first = client.get("/live/status/")
    again = client.get("/live/status/", headers={"if-none-match": first["ETag"]})

    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.usefixtures("gateway")
def test_engine_text_is_shown_literally(client: Client, gateway: ScriptedGateway) -> None:
    """
    A model or engine name that looks like HTML is shown as text.
    """
    from dataclasses import replace

    evil = "<img src=x onerror=alert(1)>"
    moment = busy()
    gateway.live = replace(moment, engines=(replace(moment.engines[0], name=evil, note=evil),))
    page = client.get("/status/").content.decode()

    assert evil not in page
    assert "&lt;img src=x" in page


def test_my_requests_now_name_their_key(alice: Any, as_user: Any, gateway: ScriptedGateway) -> None:
    """
    Running and waiting requests show the key's name; one whose key was deleted says so, with no id.
    """
    me = str(alice.pk)
    key_id = keys.issue(owner=alice, name="notebook", service_class="interactive").key.public_id
    gateway.live = live(
        running=(
            running(me, "interactive", 27, key_id=key_id),
            running(me, "interactive", 9, key_id="key_deleted"),
        ),
        queued=(queued(me, "interactive", 1, 4, key_id=key_id),),
    )

    text = as_user(alice).get("/live/mine/").content.decode()

    assert text.count(">notebook</td>") == 2
    assert text.count(">a key of yours that is gone</td>") == 1
    assert "key_deleted" not in text
    assert key_id not in text
